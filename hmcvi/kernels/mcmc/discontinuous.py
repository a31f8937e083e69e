"""Discontinuous Hamiltonian Monte Carlo: densities with jumps, and integers embedded in the line."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.energies import accept
from hmcvi.dynamics.forces import ForcedDensity
from hmcvi.dynamics.metrics import DiagonalMetric, IdentityMetric, Metric
from hmcvi.internal.checks import at_least, positive
from hmcvi.internal.random import laplace_variates, permutation, standard_normal, uniform
from hmcvi.kernels.mcmc.kernel import Info, Kernel


@dataclass(frozen=True, eq=False)
class DiscontinuousHMC(Kernel):
    """Laplace momentum on the coordinates in which log γ jumps, Gaussian momentum on the others:

        H(z, v) = −log γ(z) + Σ_{i∈D} |w_i| + ½ Σ_{i∉D} w_i²,   w = L⁻¹v,   M = L Lᵀ the metric,

    so m_i = L_ii is the mass of a discontinuous coordinate: it moves by ε/m_i at a time.  One step: half a
    kick and half a drift of the others, `cross` for each i ∈ D in the order φ, half a drift, half a kick.

    Exact: (z, v, φ) ↦ (L steps of φ, v turned round, φ read backwards) is its own inverse, keeps volume, and
    φ, drawn once per trajectory, is as likely backwards; so accepting with min(1, e^{−ΔH}) keeps γ.  Each
    chain has its own φ: with one order for all, only the average over orders would keep γ.

    discontinuous: mask [d], or names of the density's variables; log γ needs no derivative in them.
    step_size: number, [d] or one per chain [..., 1].
    jitter: each chain draws its ε for each transition from U[(1−jitter) ε, (1+jitter) ε]; with ε fixed a
        coordinate would stay on a grid.
    metric: M over all d coordinates; it must not mix discontinuous ones with each other or with the rest.

    A transition costs, for k coordinates in D, L·k evaluations of log γ, and L·(1 gradient + 1 evaluation)
    more where there are others.  [Nishimura, Dunson & Lu 2020, algorithms 1 and 2]

    >>> staircase = Density(lambda z: -z.abs().ceil().sum(-1))
    >>> kernel = DiscontinuousHMC(staircase, torch.tensor([True, True]), step_size=0.9, num_steps=5)
    >>> state, info = kernel.step(kernel.init(torch.zeros(3, 2)), torch.Generator().manual_seed(0))
    >>> info["accepted"].tolist(), info["num_evaluations"].tolist()
    ([True, True, True], [10, 10, 10])
    """

    density: Density
    discontinuous: Tensor | Sequence[bool] | Sequence[str]
    step_size: float | Tensor
    num_steps: int
    metric: Metric = None  # type: ignore[assignment]
    jitter: float = 0.2

    def __post_init__(self) -> None:
        settle = functools.partial(object.__setattr__, self)
        at_least(1, num_steps=self.num_steps)
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter must lie in [0, 1), got {self.jitter}")
        if not isinstance(self.density, Density):
            settle("density", Density(self.density))
        settle("discontinuous", mask_of(self.discontinuous, self.density))
        settle("step_size", positive(self.step_size, "step_size"))
        if self.metric is None:
            settle("metric", IdentityMetric())
        _check_separable(self.metric, self.mask)

    @property
    def mask(self) -> Tensor:
        """Which coordinates are discontinuous.  Boolean [d]"""
        return torch.as_tensor(self.discontinuous)

    @property
    def uses_gradient(self) -> bool:  # type: ignore[override]
        """Whether there are continuous coordinates."""
        return not bool(self.mask.all())

    @torch.no_grad()
    def init(self, position: Tensor) -> Phase:
        if position.shape[-1] != len(self.mask):
            raise ValueError(
                f"the mask of discontinuous coordinates has {len(self.mask)} entries, "
                f"the positions have {position.shape[-1]} dimensions"
            )
        position = position.detach()
        self.density.check(position, self.uses_gradient)
        self.metric.check(position)
        return self._system(position).evaluate(Phase(position))

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        system = self._system(state.position)
        noise = standard_normal(state.position, generator)
        noise = laplace_variates(state.position, generator).where(system.discontinuous, noise)
        order = system.indices[permutation(state.position[..., system.discontinuous], generator)]
        scale = 1 + self.jitter * (2 * uniform(state.position[..., :1], generator) - 1)
        number = uniform(state.position[..., 0], generator)
        start = system.evaluate(state)._replace(momentum=self.metric.color(noise))
        end, crossings = system.trajectory(
            start, scale * torch.as_tensor(self.step_size).to(noise), self.num_steps, order
        )
        return self._choose(system, start, end, number, crossings)

    def _system(self, like: Tensor) -> DiscontinuousSystem:
        return DiscontinuousSystem(self.density, self.metric, self.mask.to(like.device))

    def _choose(
        self, system: DiscontinuousSystem, start: Phase, end: Phase, number: Tensor, crossings: Tensor
    ) -> tuple[Phase, Info]:
        """end with probability min(1, e^{−ΔH}), else start."""
        info = accept(system.energy(start), system.energy(end), number)
        updates = self.num_steps * len(system.indices)
        gradients = self.num_steps * self.uses_gradient
        count = torch.full_like(info["accepted"], 1, dtype=torch.int64)
        info |= {
            "crossing_rate": crossings / updates,
            "num_gradients": gradients * count,
            "num_evaluations": (updates + gradients * (1 + isinstance(self.density, ForcedDensity))) * count,
        }
        return end.where(info["accepted"], start)._replace(momentum=None), info


class DiscontinuousSystem:
    """The Hamiltonian of `DiscontinuousHMC` and its reversible, volume-preserving integrator.

    discontinuous: mask [d]; `indices` [k] are its coordinates.
    """

    def __init__(self, density: Density, metric: Metric, discontinuous: Tensor) -> None:
        self.density, self.metric, self.discontinuous = density, metric, discontinuous
        self.indices = discontinuous.nonzero()[:, 0]
        self.has_continuous = len(self.indices) < len(discontinuous)

    def evaluate(self, state: Phase) -> Phase:
        """The same point with log γ known, and its gradient where something moves by it."""
        if state.log_prob is not None and (state.grad is not None or not self.has_continuous):
            return state
        if not self.has_continuous:
            return state._replace(log_prob=self.density.finite_log_prob(state.position))
        # unmasked: a derivative that does not exist in a discontinuous coordinate is nobody's failure
        value, grad = self.density.value_and_grad(state.position)
        return state._replace(log_prob=value.where(value.isfinite(), -torch.inf), grad=grad)

    def energy(self, state: Phase) -> Tensor:
        """H(z, v)  [...]"""
        assert state.log_prob is not None and state.momentum is not None
        white = self.metric.whiten(state.momentum)
        return white.abs().where(self.discontinuous, 0.5 * white.square()).sum(-1) - state.log_prob

    def trajectory(
        self, start: Phase, step_size: Tensor, num_steps: int, order: Tensor
    ) -> tuple[Phase, Tensor]:
        """num_steps steps, and how many coordinate updates went through [...].

        step_size: [..., 1] or [..., d]; order: [..., k], the discontinuous coordinates as they take turns.
        """
        masses = self.metric.color(torch.ones_like(start.position))
        lengths = step_size / masses  # ε/m_i, meaningful in the discontinuous coordinates alone
        state, crossings = start, torch.zeros_like(start.position[..., 0])
        for _ in range(num_steps):
            state = self.drift(self.kick(state, step_size / 2), step_size / 2)
            for index in order.split(1, -1):
                state, crossed = self.cross(state, index, lengths, masses)
                crossings = crossings + crossed
            state = self.kick(self.drift(state, step_size / 2, with_grad=True), step_size / 2)
        return state, crossings

    def kick(self, state: Phase, step_size: Tensor) -> Phase:
        """v_i ← v_i + ε ∂_i log γ(z) for the continuous coordinates."""
        if not self.has_continuous:
            return state
        assert state.momentum is not None and state.grad is not None
        kicked = state.momentum + step_size * state.grad
        return state._replace(momentum=state.momentum.where(self.discontinuous, kicked))

    def drift(self, state: Phase, step_size: Tensor, with_grad: bool = False) -> Phase:
        """z_i ← z_i + ε (M⁻¹v)_i for the continuous coordinates."""
        if not self.has_continuous:
            return state
        assert state.momentum is not None
        moved = state.position + step_size * self.metric.velocity(state.momentum)
        position = state.position.where(self.discontinuous, moved)
        if with_grad:
            return self.evaluate(Phase(position, state.momentum))
        return Phase(position, state.momentum, self.density.finite_log_prob(position))

    def cross(self, state: Phase, index: Tensor, lengths: Tensor, masses: Tensor) -> tuple[Phase, Tensor]:
        """Exact dynamics of coordinate i: z_i* = z_i + (ε/m_i) sign v_i,  ΔU = log γ(z) − log γ(z*);

            |v_i|/m_i > ΔU:  z_i ← z_i*,  v_i ← v_i − sign(v_i) m_i ΔU;    else:  v_i ← −v_i.

        index: [..., 1], a coordinate for each chain; lengths: ε/m, masses: m, both [..., d].
        Where log γ(z*) is not a number the barrier is infinite.
        """
        assert state.momentum is not None and state.log_prob is not None
        momentum, mass = state.momentum.gather(-1, index), masses.gather(-1, index)
        direction = momentum.sign()
        position = state.position.scatter_add(-1, index, lengths.gather(-1, index) * direction)
        log_prob = self.density.finite_log_prob(position)
        barrier = (state.log_prob - log_prob)[..., None]
        crosses = momentum.abs() / mass > barrier
        momentum = (momentum - direction * mass * barrier).where(crosses, -momentum)
        crossed = crosses[..., 0]
        return Phase(
            position.where(crosses, state.position),
            state.momentum.scatter(-1, index, momentum),
            log_prob.where(crossed, state.log_prob),
        ), crossed


def mask_of(discontinuous: Tensor | Sequence[bool] | Sequence[str], density: Density) -> Tensor:
    """Which coordinates are discontinuous, from a mask [d] or from names of variables.  Boolean [d]"""
    layout = density.layout
    if not isinstance(discontinuous, Tensor) and any(isinstance(entry, str) for entry in discontinuous):
        if layout is None:
            raise ValueError("names need a density with named variables: Density(log_prob, shapes={...})")
        unknown = [name for name in discontinuous if name not in layout.slices]
        if unknown:
            raise ValueError(f"there is no variable {unknown[0]!r}: name some of {list(layout.slices)}")
        mask = torch.zeros(layout.dim, dtype=torch.bool)
        for name in discontinuous:
            mask[layout.slices[str(name)]] = True
    else:
        mask = torch.as_tensor(discontinuous)
    if mask.dtype != torch.bool or mask.ndim != 1:
        raise ValueError(
            f"discontinuous must be a boolean mask [d], got {mask.dtype} of shape {list(mask.shape)}"
        )
    if layout is not None and len(mask) != layout.dim:
        raise ValueError(f"the mask has {len(mask)} entries, the variables fill {layout.dim} dimensions")
    if not mask.any():
        raise ValueError("no coordinate is discontinuous: use HMC, or mark at least one")
    return mask


def _check_separable(metric: Metric, discontinuous: Tensor) -> None:
    """L must be positive and diagonal in the discontinuous coordinates, or they cannot move one by one."""
    like, dim = metric.log_det(), len(discontinuous)
    mask = discontinuous.to(like.device)
    masses = metric.color(torch.ones(dim, dtype=like.dtype, device=like.device))[..., mask]
    if not isinstance(metric, IdentityMetric | DiagonalMetric):
        basis = torch.eye(dim, dtype=like.dtype, device=like.device).view(dim, *(1,) * like.ndim, dim)
        root = metric.color(basis).movedim(0, -1)  # [..., d, d]
        mixed = root - torch.diag_embed(root.diagonal(dim1=-2, dim2=-1))
        if mixed[..., mask, :].any() or mixed[..., mask].any():
            raise ValueError(
                "the metric mixes discontinuous coordinates with others: use a DiagonalMetric, or a factor "
                "that is diagonal in their rows and columns"
            )
    if not (masses > 0).all() or not masses.isfinite().all():
        raise ValueError(f"masses of discontinuous coordinates must be positive, got {masses.tolist()}")
