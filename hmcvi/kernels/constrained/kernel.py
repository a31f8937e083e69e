"""Constrained Hamiltonian Monte Carlo: dynamics on the inputs that give exactly what was observed."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Never, Self

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.energies import accept
from hmcvi.internal.checks import at_least, positive
from hmcvi.internal.random import integer, standard_normal, uniform
from hmcvi.internal.seeds import generator as seeded
from hmcvi.kernels.constrained.initial import choose_candidates, relax
from hmcvi.kernels.constrained.manifold import Manifold, ManifoldPoint
from hmcvi.kernels.constrained.projection import Projector
from hmcvi.kernels.constrained.replay import ReplayedManifold
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.kernels.mcmc.retarget import conditional
from hmcvi.models.generator import Generator


class _Point(NamedTuple):
    """Chains on a trajectory: where they are, what is known there, which have failed, what they have cost."""

    position: Tensor  # [chains, M]
    momentum: Tensor  # [chains, M], tangent
    here: ManifoldPoint
    alive: Tensor  # [chains]
    num_residuals: Tensor  # [chains]


@dataclass(frozen=True, eq=False)
class ConstrainedHMC(Kernel):
    """Hamiltonian dynamics on the manifold {u : g(u) = y}, with the density that inputs u ~ ρ have there,

        π(u) ∝ ρ(u) |J Jᵀ|^{−½},   H(u, p) = −log π(u) + ½ pᵀp,   J p = 0,   J = ∂g/∂u.

    A step is half a kick, N_g geodesic steps of ε/N_g and half a kick, momenta projected to be tangent.  A
    geodesic step moves along p and is projected on the manifold along the rows of J.  A chain for which that
    fails, or whose step reversed does not lead back to where it was, is rejected.
    [Graham & Storkey 2017; Graham 2018, algorithm 11]

    generator: see `hmcvi.models.Generator`.  observed: y [N], or one per chain [chains, N].
    step_size: ε, a number or one per chain [..., 1].  num_geodesic: N_g.
    num_steps: of a transition, or the least and the most, between which each transition draws it.
    tolerance: of |g(u) − y|_∞; its square root is that of the step reversed.  With a conditional generator
        chains that have come within it stay there, by the simulation that has to find its own past as well.
    Positions are float64; `find_initial` makes initial ones.
    """

    generator: Generator
    observed: Tensor = field(repr=False)
    step_size: float | Tensor
    num_steps: int | tuple[int, int]
    num_geodesic: int = 1
    tolerance: float = 1e-8
    max_iterations: int = 50
    reversibility_check: bool = True
    manifold: Manifold = field(init=False, repr=False)

    uses_gradient = True

    def __post_init__(self) -> None:
        settle = functools.partial(object.__setattr__, self)
        least, most = self._range
        if most < least:
            raise ValueError(f"num_steps must be a number or a range (least, most), got {self.num_steps}")
        at_least(1, num_steps=least, num_geodesic=self.num_geodesic, max_iterations=self.max_iterations)
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {self.tolerance}")
        # Jacobians of other structures make programs of so many operations that recording takes a minute
        manifold = ReplayedManifold if self.generator.structure == "autoregressive" else Manifold
        settle("manifold", manifold.of(self.generator, self.observed))
        settle("observed", self.manifold.observed)
        settle("step_size", positive(self.step_size, "step_size"))

    @property
    def density(self) -> Density:  # type: ignore[override]
        """ρ, that of the inputs; π has the volume as well."""
        return self.generator.density

    @property
    def project(self) -> Projector:
        """The projection on the manifold."""
        return Projector(self.manifold.residual_tolerance(self.tolerance), self.max_iterations)

    @property
    def _range(self) -> tuple[int, int]:
        """The least and the most steps."""
        return (self.num_steps, self.num_steps) if isinstance(self.num_steps, int) else self.num_steps

    def replace(self, **settings: Any) -> Self:
        if "density" in settings:
            raise ValueError("the density is that of the generator's inputs: build a kernel for another one")
        new = super().replace(**settings)
        if not settings.keys() & {"generator", "observed"}:
            object.__setattr__(new, "manifold", self.manifold)  # with its programs
        return new

    @torch.no_grad()
    def init(self, position: Tensor) -> Phase:
        if position.dtype != torch.float64:
            raise ValueError(f"constrained dynamics need float64 positions, got {position.dtype}")
        flat = self._chains(position)
        error = self.manifold.residual(flat).abs().amax(-1)
        if not (error < self.tolerance).all():
            worst = float(error.nan_to_num(torch.inf).max())
            raise ValueError(
                f"positions must give what was observed: |g(u) − y| is up to {worst:.2g}, the tolerance "
                f"{self.tolerance:.2g}; find_initial makes such positions"
            )
        self.manifold.select(torch.tensor(0)).check_structure(flat[0])
        here = self.manifold.at(flat)
        if (lost := here.jacobian.log_volume().isfinite().logical_not()).any():
            raise ValueError(
                f"the Jacobian of the generator has not full rank at the positions of {int(lost.sum())} of "
                f"{len(lost)} chains: add observation noise, generator.noisy(scale), and it has everywhere"
            )
        log_prob, grad = here.log_prob.view(position.shape[:-1]), here.grad.view(position.shape)
        return Phase(position.detach(), None, log_prob, grad)

    def _chains(self, position: Tensor) -> Tensor:
        """[..., M] -> [chains, M]"""
        dim = self.generator.dim
        if position.shape[-1] != dim:
            raise ValueError(f"the generator has {dim} inputs, the positions {position.shape[-1]}")
        flat = position.detach().reshape(-1, dim)
        self._check_number(len(flat))
        return flat

    def _check_number(self, num_chains: int) -> None:
        """Refuse observations of another number of chains."""
        if self.observed.ndim == 2 and len(self.observed) != num_chains:
            raise ValueError(
                f"there are {len(self.observed)} observations and {num_chains} chains: give one for each"
            )

    @torch.no_grad()
    def find_initial(
        self, num_chains: int, seed: int = 0, max_tries: int = 100, num_candidates: int = 16
    ) -> Tensor:
        """Initial positions on the manifold  [num_chains, M]

        Each chain draws candidates: inputs from their distribution, moved to the manifold by Newton's method,
        in those that belong to single outputs if the generator has such, else within a random subspace.  Of
        the first `num_candidates` or more that are found it takes one with probability proportional to its
        importance weight, or of fewer after `max_tries` times as many draws.  From there it climbs along the
        manifold until its inputs are as likely as inputs drawn from their distribution, as those of data from
        the model would be.
        """
        at_least(1, num_candidates=num_candidates)
        self._check_number(num_chains)
        rng = seeded(seed)
        initial = choose_candidates(self.manifold, num_chains, self.project, num_candidates, max_tries, rng)
        level = self.density.finite_log_prob(self.generator.sample(num_chains, generator=rng))
        return relax(self.manifold, initial, level, self.project, self.max_iterations)

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        batch, position = state.position.shape[:-1], self._chains(state.position)
        momentum = standard_normal(state.position, generator).view(position.shape)
        number = uniform(state.position[..., 0], generator).view(-1)
        here = None
        if state.log_prob is not None and state.grad is not None:  # else of another kernel
            known = state.log_prob.view(-1), state.grad.view(position.shape)
            here = ManifoldPoint(*known, self.manifold.linearize(position))
        start = self.point(position, momentum, here)
        step_size = torch.as_tensor(self.step_size).to(position).expand(*batch, 1).reshape(-1, 1)
        least, most = self._range
        num_steps = least if isinstance(self.num_steps, int) else integer(least, most, generator)
        end = self.simulate(start, step_size, num_steps)
        kept = self.manifold.is_kept(start.position, end.position, self.tolerance)
        num_gradients = num_steps + (here is None)
        return self._choose(start, end._replace(alive=end.alive & kept), number, num_gradients, batch)

    def point(self, position: Tensor, momentum: Tensor, here: ManifoldPoint | None = None) -> _Point:
        """The beginning of trajectories, their momenta made tangent.  position, momentum: [chains, M]"""
        here, alive = here or self.manifold.at(position), torch.ones_like(position[:, 0], dtype=torch.bool)
        return _Point(position, here.jacobian.project(momentum), here, alive, alive.to(torch.int64) - 1)

    def simulate(self, point: _Point, step_size: Tensor, num_steps: int | None = None) -> _Point:
        """Follow the dynamics for num_steps, or the most of the kernel's, of `step_size` [chains, 1]."""
        for _ in range(self._range[1] if num_steps is None else num_steps):
            point = self._drift(self._kick(point, step_size / 2), step_size)
            point = self._kick(point, step_size / 2)
        return point

    def _kick(self, point: _Point, step_size: Tensor) -> _Point:
        """p ← P(p + ε ∇log π(u)), P the projection on the tangent space."""
        momentum = point.here.jacobian.project(point.momentum + step_size * point.here.grad)
        return point._replace(momentum=momentum)

    def _drift(self, point: _Point, step_size: Tensor) -> _Point:
        """N_g geodesic steps of ε/N_g; chains that fail stay where they failed."""
        step, here = step_size / self.num_geodesic, point.here
        position, momentum, alive, count = point.position, point.momentum, point.alive, point.num_residuals
        jacobian = here.jacobian
        for index in range(self.num_geodesic):
            new = self.project(self.manifold, jacobian, position + step * momentum, alive)
            alive, count = alive & new.found, count + new.num_residuals
            moved = new.position.where(alive[:, None], position)
            if index == self.num_geodesic - 1:
                here = self.manifold.at(moved)
                jacobian = here.jacobian
            else:
                jacobian = self.manifold.linearize(moved)
            momentum = jacobian.project((moved - position) / step)
            if self.reversibility_check:
                back = self.project(self.manifold, jacobian, moved - step * momentum, alive, position)
                returned = (back.position - position).abs().amax(-1) < math.sqrt(self.tolerance)
                alive, count = alive & back.found & returned, count + back.num_residuals
            position = moved
        return _Point(position, momentum, here, alive, count)

    def _choose(
        self, start: _Point, end: _Point, number: Tensor, num_gradients: int, batch: torch.Size
    ) -> tuple[Phase, Info]:
        """Accept the end with probability min(1, e^{−ΔH}) where no projection failed."""
        info = accept(_energy(start), _energy(end).where(end.alive, torch.inf), number)
        new = Phase(end.position, None, end.here.log_prob, end.here.grad).where(
            info["accepted"], Phase(start.position, None, start.here.log_prob, start.here.grad)
        )
        info |= {
            "diverged": info["diverged"] & end.alive,
            "num_failed_projections": (~end.alive).to(torch.int64),
            "num_residuals": end.num_residuals,
            "num_gradients": torch.full_like(end.num_residuals, num_gradients),
        }
        position = new.position.view(*batch, -1)
        assert new.log_prob is not None and new.grad is not None
        state = Phase(position, None, new.log_prob.view(batch), new.grad.view(position.shape))
        return state, {name: value.view(batch) for name, value in info.items()}


def _energy(point: _Point) -> Tensor:
    """H(u, p)  [chains]"""
    return 0.5 * point.momentum.square().sum(-1) - point.here.log_prob


@conditional.register
def _(kernel: ConstrainedHMC, density: Density, position: Tensor) -> Never:
    raise ValueError("constrained dynamics move all inputs together, and cannot be a block of Gibbs")
