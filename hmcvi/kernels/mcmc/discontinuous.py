"""Discontinuous Hamiltonian Monte Carlo: densities with jumps, and integers embedded in the line."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.energies import accept
from hmcvi.dynamics.forces import ForcedDensity
from hmcvi.dynamics.metrics import DiagonalMetric, IdentityMetric, Metric
from hmcvi.internal.checks import at_least, positive
from hmcvi.internal.random import laplace_variates, permutation, standard_normal, uniform
from hmcvi.kernels.mcmc.crossing import DiscontinuousSystem, FactoredSystem
from hmcvi.kernels.mcmc.factored import FactoredDensity
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
    more where there are others.  With a `FactoredDensity` only the factors that change are evaluated: 2 L
    times for each set of independent coordinates, and log γ once, or L gradients.
    [Nishimura, Dunson & Lu 2020, algorithms 1 and 2]

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
    _groups: Tensor | None = field(init=False, repr=False)

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
        factored = self.density if isinstance(self.density, FactoredDensity) else None
        settle("_groups", factored and factored.groups(self.mask))

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
        system = self._system(position)
        if isinstance(system, FactoredSystem):
            lengths = torch.as_tensor(self.step_size).to(position) / system.masses(position)
            system.density.check_local(position, system.groups, lengths)
        return system.evaluate(Phase(position))

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        system = self._system(state.position)
        noise = standard_normal(state.position, generator)
        noise = laplace_variates(state.position, generator).where(system.discontinuous, noise)
        turns = state.position[..., :1].expand(*state.position.shape[:-1], system.num_turns)
        order = system.at_turn(permutation(turns, generator))
        scale = 1 + self.jitter * (2 * uniform(state.position[..., :1], generator) - 1)
        number = uniform(state.position[..., 0], generator)
        start = system.evaluate(state)._replace(momentum=self.metric.color(noise))
        end, crossings = system.trajectory(
            start, scale * torch.as_tensor(self.step_size).to(noise), self.num_steps, order
        )
        return self._choose(system, start, end, number, crossings)

    def _system(self, like: Tensor) -> DiscontinuousSystem:
        mask = self.mask.to(like.device)
        if self._groups is None:
            return DiscontinuousSystem(self.density, self.metric, mask)
        assert isinstance(self.density, FactoredDensity)
        return FactoredSystem(self.density, self.metric, mask, self._groups.to(like.device))

    def _choose(
        self, system: DiscontinuousSystem, start: Phase, end: Phase, number: Tensor, crossings: Tensor
    ) -> tuple[Phase, Info]:
        """end with probability min(1, e^{−ΔH}), else start."""
        info = accept(system.energy(start), system.energy(end), number)
        count = torch.ones_like(info["accepted"], dtype=torch.int64)
        costs = self._costs(system.num_turns)
        info |= {
            "crossing_rate": crossings / (self.num_steps * len(system.indices)),
            **{name: cost * count for name, cost in costs.items()},
        }
        return end.where(info["accepted"], start)._replace(momentum=None), info

    def _costs(self, num_turns: int) -> dict[str, int]:
        """What a transition evaluates."""
        gradients, turns = self.num_steps * self.uses_gradient, self.num_steps * num_turns
        if self._groups is not None:
            evaluations = {
                "num_evaluations": int(not self.uses_gradient),
                "num_local_evaluations": 2 * turns,
            }
        else:
            forced = isinstance(self.density, ForcedDensity)
            evaluations = {"num_evaluations": turns + gradients * (1 + forced)}
        return {"num_gradients": gradients, **evaluations}


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
