"""Constrained Hamiltonian Monte Carlo: dynamics on the inputs that give exactly what was observed."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.dynamics.energies import accept
from hmcvi.internal import random
from hmcvi.kernels.constrained.initial import candidates, relax
from hmcvi.kernels.constrained.manifold import Fibre, FibrePoint, InputModel
from hmcvi.kernels.constrained.projection import Projector
from hmcvi.kernels.mcmc.kernel import Info, Kernel, positive


class _Point(NamedTuple):
    """Chains on the way: where they are, what is known there, which have failed, what they have cost."""

    position: Tensor  # [chains, M]
    momentum: Tensor  # [chains, M], tangent
    here: FibrePoint
    alive: Tensor  # [chains]
    num_residuals: Tensor  # [chains]


class ConstrainedHMC(Kernel):
    """Hamiltonian dynamics on the fibre {u : g(u) = y}, with the density that inputs u ~ ρ have there,

        π(u) ∝ ρ(u) |J Jᵀ|^{−½},   H(u, p) = −log π(u) + ½ pᵀp,   J p = 0,   J = ∂g/∂u.

    A step is half a kick, N_g geodesic steps of ε/N_g and half a kick, momenta projected to be tangent.  A
    geodesic step moves along p and comes back to the fibre along the rows of J.  A chain for which that
    fails, or that would not come back the same way, is rejected.
    [Graham & Storkey 2017; Graham 2018, algorithm 11]

    generator: see `hmcvi.models.Generator`.  observed: y [N], or one per chain [chains, N].
    step_size: ε, a number or one per chain [..., 1].  num_geodesic: N_g.
    num_steps: of a transition, or the least and the most, between which each transition draws it.
    tolerance: of |g(u) − y|_∞; its square root is that of the way back.  With a conditional generator chains
        that have come within it stay there, by the simulation that has to find its own past as well.
    Positions are float64; `find_initial` makes the first ones.
    """

    uses_gradient = True
    tuned = ("step_size",)
    settles = True
    target_acceptance = 0.8

    def __init__(
        self,
        generator: InputModel,
        observed: Tensor,
        step_size: float | Tensor,
        num_steps: int | tuple[int, int],
        num_geodesic: int = 1,
        tolerance: float = 1e-8,
        max_iterations: int = 50,
        reversibility_check: bool = True,
    ) -> None:
        least, most = (num_steps, num_steps) if isinstance(num_steps, int) else num_steps
        if most < least:
            raise ValueError(f"num_steps must be a number or a range (least, most), got {num_steps}")
        for name, value in {
            "num_steps": least,
            "num_geodesic": num_geodesic,
            "max_iterations": max_iterations,
        }.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {tolerance}")
        self.density = generator.density
        self.fibre = Fibre.over(generator, observed)
        self.step_size = positive(step_size, "step_size")
        self.num_steps, self.num_geodesic = num_steps, num_geodesic
        self.tolerance, self.reversibility_check = tolerance, reversibility_check
        self.max_iterations = max_iterations

    @property
    def project(self) -> Projector:
        """To the fibre."""
        return Projector(self.fibre.strictness(self.tolerance), self.max_iterations)

    def single_step(self) -> ConstrainedHMC:
        return self.replace(num_steps=1)

    def replace(self, **settings: Any) -> Self:
        if "density" in settings:
            raise ValueError("the density is that of the generator's inputs: build a kernel for another one")
        return super().replace(**settings)

    def conditional(self, position: Tensor, block: slice | Tensor) -> Self:
        raise ValueError("constrained dynamics move all inputs together, and cannot be a block of Gibbs")

    @torch.no_grad()
    def init(self, position: Tensor) -> Phase:
        if position.dtype != torch.float64:
            raise ValueError(f"constrained dynamics need float64 positions, got {position.dtype}")
        flat = self._chains(position)
        error = self.fibre.residual(flat).abs().amax(-1)
        if not (error < self.tolerance).all():
            worst = float(error.nan_to_num(torch.inf).max())
            raise ValueError(
                f"positions must give what was observed: |g(u) − y| is up to {worst:.2g}, the tolerance "
                f"{self.tolerance:.2g}; find_initial makes such positions"
            )
        self.fibre.select(torch.tensor(0)).check_structure(flat[0])
        here = self.fibre.at(flat)
        if (lost := here.geometry.log_volume().isfinite().logical_not()).any():
            raise ValueError(
                f"the Jacobian of the generator has not full rank at the positions of {int(lost.sum())} of "
                f"{len(lost)} chains: add observation noise, generator.noisy(scale), and it has everywhere"
            )
        log_prob, grad = here.log_prob.view(position.shape[:-1]), here.grad.view(position.shape)
        return Phase(position.detach(), None, log_prob, grad)

    def _chains(self, position: Tensor) -> Tensor:
        """[..., M] -> [chains, M]"""
        dim, observed = self.fibre.generator.dim, self.fibre.observed
        if position.shape[-1] != dim:
            raise ValueError(f"the generator has {dim} inputs, the positions {position.shape[-1]}")
        flat = position.detach().reshape(-1, dim)
        if observed.ndim == 2 and len(observed) != len(flat):
            raise ValueError(
                f"there are {len(observed)} observations and {len(flat)} chains: give one for each"
            )
        return flat

    @torch.no_grad()
    def find_initial(
        self, num_chains: int, seed: int = 0, max_tries: int = 100, num_candidates: int = 16
    ) -> Tensor:
        """Positions on the fibre  [num_chains, M]

        Each chain draws candidates: inputs from their law, moved to the fibre by Newton's method, in those
        that belong to single outputs if the generator has such, else within a random subspace.  Of the first
        `num_candidates` or more that are found it takes one with probability proportional to its importance
        weight, or of fewer after `max_tries` times as many draws.  From there it slides along the fibre until
        its inputs are as likely as inputs drawn from their law, as those of data from the model would be.
        """
        if num_candidates < 1:
            raise ValueError(f"num_candidates must be at least 1, got {num_candidates}")
        rng = torch.Generator().manual_seed(seed)
        result = self._chains(torch.empty(num_chains, self.fibre.generator.dim, dtype=torch.float64))
        best, count = torch.full((num_chains,), -math.inf, dtype=torch.float64), torch.zeros(num_chains)
        nearest = math.inf
        for _ in range(max_tries):
            seeking = (count < num_candidates).nonzero()[:, 0]
            if len(seeking) == 0:
                break
            fibre = self.fibre.select(rows := seeking.repeat_interleave(num_candidates))
            drawn = candidates(fibre, len(rows), self.project.tolerance, self.max_iterations, rng)
            keys, chosen = drawn.keys(rng).view(-1, num_candidates).max(-1)
            better = keys > best[seeking]
            chosen = chosen + num_candidates * torch.arange(len(seeking))
            result[seeking[better]] = drawn.position[chosen[better]]
            best[seeking] = best[seeking].maximum(keys)
            count[seeking] += drawn.log_weight.isfinite().view(-1, num_candidates).sum(-1)
            nearest = min(nearest, float(drawn.error.nan_to_num(math.inf).min()))
        if (missing := int((count == 0).sum())) == 0:
            level = self.density.finite_log_prob(self.fibre.generator.sample(num_chains, generator=rng))
            return relax(self.fibre, result, level, self.project, self.max_iterations)
        raise ValueError(
            f"no inputs were found that give what was observed, for {missing} of {num_chains} chains in "
            f"{max_tries * num_candidates} tries; the smallest |g(u) − y| was {nearest:.2g}. Is the "
            "observation in the range of the generator? With observation noise, generator.noisy(scale), "
            "every observation is"
        )

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        batch, position = state.position.shape[:-1], self._chains(state.position)
        momentum = random.standard_normal(state.position, generator).view(position.shape)
        coin = random.uniform(state.position[..., 0], generator).view(-1)
        here = None
        if state.log_prob is not None and state.grad is not None:  # else of another kernel
            known = state.log_prob.view(-1), state.grad.view(position.shape)
            here = FibrePoint(*known, self.fibre.linearize(position))
        start = self.point(position, momentum, here)
        step_size = self.step_size.to(position).expand(*batch, 1).reshape(-1, 1)
        num_steps = self.num_steps
        if not isinstance(num_steps, int):
            num_steps = random.integer(*num_steps, generator)
        end = self.simulate(start, step_size, num_steps)
        kept = self.fibre.is_kept(start.position, end.position, self.tolerance)
        num_gradients = num_steps + (here is None)
        return self._choose(start, end._replace(alive=end.alive & kept), coin, num_gradients, batch)

    def point(self, position: Tensor, momentum: Tensor, here: FibrePoint | None = None) -> _Point:
        """Chains about to start, their momenta made tangent.  [chains, M], [chains, M]"""
        here, alive = here or self.fibre.at(position), torch.ones_like(position[:, 0], dtype=torch.bool)
        return _Point(position, here.geometry.project(momentum), here, alive, alive.to(torch.int64) - 1)

    def simulate(self, point: _Point, step_size: Tensor, num_steps: int | None = None) -> _Point:
        """The dynamics, for num_steps (those of the kernel, or the most) of `step_size` [chains, 1]."""
        if num_steps is None:
            num_steps = self.num_steps if isinstance(self.num_steps, int) else self.num_steps[1]
        for _ in range(num_steps):
            point = self._drift(self._kick(point, step_size / 2), step_size)
            point = self._kick(point, step_size / 2)
        return point

    def _kick(self, point: _Point, step_size: Tensor) -> _Point:
        """p ← P(p + ε ∇log π(u)), P the projection on the tangent space."""
        momentum = point.here.geometry.project(point.momentum + step_size * point.here.grad)
        return point._replace(momentum=momentum)

    def _drift(self, point: _Point, step_size: Tensor) -> _Point:
        """N_g geodesic steps of ε/N_g; chains that fail stay where they failed."""
        step, here = step_size / self.num_geodesic, point.here
        position, momentum, alive, count = point.position, point.momentum, point.alive, point.num_residuals
        geometry = here.geometry
        for index in range(self.num_geodesic):
            new = self.project(self.fibre, geometry, position + step * momentum, alive)
            alive, count = alive & new.found, count + new.num_residuals
            moved = new.position.where(alive[:, None], position)
            if index == self.num_geodesic - 1:
                here = self.fibre.at(moved)
                geometry = here.geometry
            else:
                geometry = self.fibre.linearize(moved)
            momentum = geometry.project((moved - position) / step)
            if self.reversibility_check:
                back = self.project(self.fibre, geometry, moved - step * momentum, alive)
                returned = (back.position - position).abs().amax(-1) < math.sqrt(self.tolerance)
                alive, count = alive & back.found & returned, count + back.num_residuals
            position = moved
        return _Point(position, momentum, here, alive, count)

    def _choose(
        self, start: _Point, end: _Point, coin: Tensor, num_gradients: int, batch: torch.Size
    ) -> tuple[Phase, Info]:
        """The end with probability min(1, e^{−ΔH}) where no projection failed, else the start."""
        info = accept(_energy(start), _energy(end).where(end.alive, torch.inf), coin)
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
