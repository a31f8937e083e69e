"""Markov chains for densities that can only be estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Never, Self

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.metrics import IdentityMetric, Metric
from hmcvi.internal.checks import positive
from hmcvi.internal.random import standard_normal
from hmcvi.kernels.mcmc.compose import Composite, Part
from hmcvi.kernels.mcmc.elliptical import EllipticalSlice
from hmcvi.kernels.mcmc.kernel import Info, Kernel, MakeKernel
from hmcvi.kernels.mcmc.metropolis import RandomWalkMetropolis, metropolis
from hmcvi.kernels.mcmc.retarget import conditional, retarget
from hmcvi.kernels.mcmc.slice import LinearSlice, ReflectiveSlice
from hmcvi.kernels.pseudo_marginal.estimators import (
    AuxiliaryDistribution,
    AuxiliaryState,
    CachedEstimates,
    Estimator,
    Seeds,
    StandardNormal,
)

NAMES = ("auxiliary", "target")


@dataclass(frozen=True, eq=False)
class PseudoMarginal(Kernel):
    """Kernel with an estimator: chains (x, u) with density ε(x, u) ρ(u), whose x has density γ.

    `init` draws u ~ ρ by a seed of its own, so that an initial state is a function of the position; `at`
    takes both.  `density` is an estimate with one u for all chains and all time, not what the chains have.
    """

    estimator: Estimator
    density: Density = field(init=False, repr=False)

    def __post_init__(self) -> None:
        density = Density(self.estimator.with_fixed_numbers)
        density.layout = self.estimator.layout
        object.__setattr__(self, "density", density)

    @torch.no_grad()
    def init(self, position: Tensor) -> AuxiliaryState:
        generator = torch.Generator(position.device).manual_seed(0)
        auxiliary = self.estimator.draw_auxiliary(position, generator)
        self.estimator.check(position.detach(), auxiliary)
        return self.at(position, auxiliary)

    @torch.no_grad()
    def at(self, position: Tensor, auxiliary: Tensor) -> AuxiliaryState:
        """The state of chains at x [..., d] and u [..., m]."""
        position, auxiliary = position.detach(), auxiliary.detach()
        prepared = self.estimator.prepare(position)
        log_prob = self.estimator.log_estimate(position, auxiliary, prepared)
        return AuxiliaryState(position, auxiliary, log_prob, prepared)

    def replace(self, **settings: Any) -> Self:
        if "density" in settings:
            raise ValueError("the density is known by its estimator alone: build a kernel for another one")
        return super().replace(**settings)


@conditional.register
def _(kernel: PseudoMarginal, density: Density, position: Tensor) -> Never:
    raise ValueError("an estimate is of all variables together: such a kernel cannot be a block of Gibbs")


@dataclass(frozen=True, eq=False)
class PseudoMarginalMH(PseudoMarginal):
    """x' = x + ε L⁻ᵀ n, u' ~ ρ, accepted together with probability min(1, ε(x', u') / ε(x, u)).

    step_size, metric: as in `RandomWalkMetropolis`.  They are not tuned in warm-up: the rate of acceptance
    depends on the noise of the estimates as much as on the step.  An estimate that is high by chance holds a
    chain for long.
    correlation: r in [0, 1).  u' = r u + √(1 − r²) n keeps part of u (of Φ⁻¹(u) if ρ is uniform), so that the
    errors of both estimates cancel in their ratio: the correlated pseudo-marginal method.
    [Andrieu & Roberts 2009; Deligiannidis, Doucet & Pitt 2018; Graham 2018, algorithm 8, (3.20)]
    """

    step_size: float | Tensor
    metric: Metric = None  # type: ignore[assignment]
    correlation: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "step_size", positive(self.step_size, "step_size"))
        if not 0 <= self.correlation < 1:
            raise ValueError(f"correlation must be at least 0 and below 1, got {self.correlation}")
        if self.correlation > 0 and isinstance(self.estimator.distribution, Seeds):
            raise ValueError(
                "no seed is near another one, correlation must be 0: write the estimator as a function of "
                "normal or uniform numbers"
            )
        if self.metric is None:
            object.__setattr__(self, "metric", IdentityMetric())

    @torch.no_grad()
    def step(
        self, state: AuxiliaryState, generator: torch.Generator | None = None
    ) -> tuple[AuxiliaryState, Info]:
        walk = self.metric.whiten_transposed(standard_normal(state.position, generator))
        proposal = state.position + torch.as_tensor(self.step_size).to(walk) * walk
        auxiliary = self.estimator.distribution.perturb(state.auxiliary, self.correlation, generator)
        estimates = CachedEstimates(self.estimator, state)
        moved, info = metropolis(
            Density(lambda target: estimates(target, auxiliary)),
            Phase(state.position, log_prob=state.log_prob),
            proposal,
            0.0,
            generator,
        )
        assert moved.log_prob is not None
        new = AuxiliaryState(
            moved.position,
            auxiliary.where(info["accepted"][..., None], state.auxiliary),
            moved.log_prob,
            estimates.prepared_at(moved.position),
        )
        return new, info | {"num_zero_estimates": estimates.num_zeros}


@dataclass(frozen=True, eq=False)
class AuxiliaryPseudoMarginal(PseudoMarginal, Composite):
    """Update of u given x, then of x given u, each by a kernel for ε(x, u) ρ(u) as a function of that alone.

    auxiliary, target: density -> kernel.  `apm_mi_mh`, `apm_ss_mh`, `apm_mi_ss` and `apm_ss_ss` are made of
        the usual ones.  Warm-up tunes both.
    info: what the two report with _auxiliary and _target behind it; counts (num_…) are added up, but for
    num_target_evaluations, the costly ones, at a new x.  [Murray & Graham 2016; Graham 2018, algorithm 9]

    >>> from hmcvi.kernels import EllipticalSlice, LinearSlice
    >>> noisy = Estimator(lambda x, u: -0.5 * x.square().sum(-1) + u.sum(-1) - 1.0, auxiliary_dim=2)
    >>> kernel = AuxiliaryPseudoMarginal(noisy, EllipticalSlice, lambda density: LinearSlice(density, 2.0))
    >>> state, info = kernel.step(kernel.init(torch.zeros(3, 1)), torch.Generator().manual_seed(0))
    >>> state.position.shape, state.auxiliary.shape
    (torch.Size([3, 1]), torch.Size([3, 2]))
    """

    auxiliary: MakeKernel = field(repr=False)
    target: MakeKernel = field(repr=False)
    kernels: tuple[Kernel, ...] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        kernels = self.auxiliary(Density(_unknown)), self.target(Density(_unknown))
        object.__setattr__(self, "kernels", kernels)

    @torch.no_grad()
    def step(
        self, state: AuxiliaryState, generator: torch.Generator | None = None
    ) -> tuple[AuxiliaryState, Info]:
        kernel, part = self._auxiliary_part(self.kernels[0], state)
        part, first = kernel.step(part, generator)
        log_prob = part.log_density(kernel.density) - self.estimator.distribution.log_prob(part.position)
        state = state._replace(
            auxiliary=part.position,
            grad=None,
            log_prob=log_prob.where(state.log_prob > -torch.inf, -torch.inf),
        )
        estimates = CachedEstimates(self.estimator, state)
        kernel, part = self._target_part(self.kernels[1], state, estimates)
        part, second = kernel.step(part, generator)
        log_prob = part.log_density(kernel.density)
        prepared = estimates.prepared_at(part.position)
        state = AuxiliaryState(part.position, state.auxiliary, log_prob, prepared)
        return state, _merge(first, second) | {"num_zero_estimates": estimates.num_zeros}

    def parts(self) -> list[Part]:
        return [self._auxiliary_part, self._target_part]

    def _auxiliary_part(self, kernel: Kernel, state: AuxiliaryState) -> tuple[Kernel, Phase]:
        estimates, rho = CachedEstimates(self.estimator, state), self.estimator.distribution
        density = Density(lambda auxiliary: estimates(state.position, auxiliary) + rho.log_prob(auxiliary))
        here = state.log_prob + rho.log_prob(state.auxiliary)
        return retarget(kernel, density), Phase(state.auxiliary, log_prob=here)

    def _target_part(
        self, kernel: Kernel, state: AuxiliaryState, estimates: CachedEstimates | None = None
    ) -> tuple[Kernel, Phase]:
        estimates = estimates or CachedEstimates(self.estimator, state)
        density = Density(lambda target: estimates(target, state.auxiliary))
        return retarget(kernel, density), Phase(state.position, log_prob=state.log_prob)

    def reports(self, info: Info) -> list[Info]:
        return [
            {key.removesuffix(f"_{name}"): value for key, value in info.items() if key.endswith(f"_{name}")}
            for name in NAMES
        ]

    def with_kernels(self, kernels: Sequence[Kernel]) -> Self:
        auxiliary, target = kernels
        return type(self)(self.estimator, lambda _: auxiliary, lambda _: target)


@dataclass(frozen=True, eq=False)
class MetropolisIndependence(Kernel):
    """u' ~ ρ, accepted with probability min(1, γ(u') ρ(u) / (γ(u) ρ(u'))).

    `IndependentMetropolis` with the distribution of an estimator, which draws by the user's generator itself.
    With γ = ε(x, ·) ρ the ratio is that of the estimates.  [Graham 2018, algorithm 10]
    """

    density: Density
    distribution: AuxiliaryDistribution

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        proposal, rho = self.distribution.draw(state.position, generator), self.distribution
        log_correction = rho.log_prob(state.position) - rho.log_prob(proposal)
        return metropolis(self.density, state, proposal, log_correction, generator)


def pm_mh(
    estimator: Estimator,
    step_size: float | Tensor,
    metric: Metric | None = None,
    correlation: float = 0.0,
) -> PseudoMarginalMH:
    """Pseudo-marginal Metropolis–Hastings: x and u move together, u anew or by a part."""
    return PseudoMarginalMH(estimator, step_size, metric or IdentityMetric(), correlation)


def apm_mi_mh(
    estimator: Estimator, step_size: float | Tensor, metric: Metric | None = None
) -> AuxiliaryPseudoMarginal:
    """New u ~ ρ, then a random walk in x."""
    return AuxiliaryPseudoMarginal(
        estimator,
        lambda density: MetropolisIndependence(density, estimator.distribution),
        lambda density: RandomWalkMetropolis(density, step_size, metric or IdentityMetric()),
    )


def apm_ss_mh(
    estimator: Estimator, step_size: float | Tensor, metric: Metric | None = None
) -> AuxiliaryPseudoMarginal:
    """A slice in u, on ellipses or reflected at the faces of its cube, then a random walk in x."""
    return AuxiliaryPseudoMarginal(
        estimator,
        _slice(estimator),
        lambda density: RandomWalkMetropolis(density, step_size, metric or IdentityMetric()),
    )


def apm_mi_ss(estimator: Estimator, width: float | Tensor, max_step_out: int = 0) -> AuxiliaryPseudoMarginal:
    """New u ~ ρ, then a slice in x along a random line."""
    return AuxiliaryPseudoMarginal(
        estimator,
        lambda density: MetropolisIndependence(density, estimator.distribution),
        lambda density: LinearSlice(density, width, max_step_out),
    )


def apm_ss_ss(estimator: Estimator, width: float | Tensor, max_step_out: int = 0) -> AuxiliaryPseudoMarginal:
    """A slice in u, then a slice in x along a random line; there is nothing to tune."""
    return AuxiliaryPseudoMarginal(
        estimator, _slice(estimator), lambda density: LinearSlice(density, width, max_step_out)
    )


def _slice(estimator: Estimator) -> MakeKernel:
    """The slice that suits the distribution of u."""
    if isinstance(estimator.distribution, Seeds):
        raise ValueError(
            "slices need an estimate that changes little when u does, which no seed gives: use apm_mi_mh or "
            "apm_mi_ss, or write the estimator as a function of normal or uniform numbers"
        )
    if isinstance(estimator.distribution, StandardNormal):
        return EllipticalSlice
    return lambda density: ReflectiveSlice(density, width=1.0)


def _merge(auxiliary: Info, target: Info) -> Info:
    """One report of the two, their counts added up."""
    merged: Info = {}
    for name, report in zip(NAMES, (auxiliary, target), strict=True):
        for key, value in report.items():
            if key.startswith("num_"):
                merged[key] = merged[key] + value if key in merged else value
            else:
                merged[f"{key}_{name}"] = value
    costly = [target[key] for key in ("num_evaluations", "num_gradients") if key in target]
    return merged | {"num_target_evaluations": torch.stack(costly).sum(0)}


def _unknown(*_: Any) -> Tensor:
    raise ValueError("the density is known by its estimator alone")
