"""Markov chains for densities that can only be estimated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.metrics import IdentityMetric, Metric
from hmcvi.internal import random
from hmcvi.kernels.mcmc.elliptical import EllipticalSlice
from hmcvi.kernels.mcmc.kernel import Info, Kernel, Part, map_tensors, positive
from hmcvi.kernels.mcmc.metropolis import RandomWalkMetropolis, metropolis
from hmcvi.kernels.mcmc.slice import LinearSlice, ReflectiveSlice
from hmcvi.kernels.pseudo_marginal.estimators import Estimator, Law, Seeds, StandardNormal

NAMES = ("auxiliary", "target")


class AuxiliaryState(NamedTuple):
    """Where a chain is, and the random numbers of its estimate.  Leading dimensions are chains."""

    position: Tensor  # x  [..., d]
    auxiliary: Tensor  # u  [..., m]
    log_prob: Tensor  # log ε(x, u)  [...]
    prepared: Any = None  # what the estimator made of x alone
    grad: Tensor | None = None  # ∇log ε by (x, u), if a kernel asked for it  [..., d + m]


class PseudoMarginal(Kernel):
    """What kernels with an estimator share: chains (x, u) with density ε(x, u) ρ(u), whose x has density γ.

    `init` draws u ~ ρ by a seed of its own, so that a start is a function of the position; `at` takes both.
    `density` is an estimate with one u for all chains and all time, not what the chains have.
    """

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator
        self.density = Density(estimator.with_fixed_numbers)
        self.density.layout = estimator.layout

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

    def conditional(self, position: Tensor, block: slice | Tensor) -> Self:
        raise ValueError("an estimate is of all variables together: such a kernel cannot be a block of Gibbs")


class PseudoMarginalMH(PseudoMarginal):
    """x' = x + ε L⁻ᵀ n, u' ~ ρ, accepted together with probability min(1, ε(x', u') / ε(x, u)).

    step_size, metric: as in `RandomWalkMetropolis`.  They are not tuned in warm-up: the rate of acceptance
    depends on the noise of the estimates as much as on the step.  An estimate that is high by chance holds a
    chain for long.  [Andrieu & Roberts 2009; Graham 2018, algorithm 8]
    """

    def __init__(self, estimator: Estimator, step_size: float | Tensor, metric: Metric | None = None) -> None:
        super().__init__(estimator)
        self.step_size = positive(step_size, "step_size")
        self.metric = IdentityMetric() if metric is None else metric

    @torch.no_grad()
    def step(
        self, state: AuxiliaryState, generator: torch.Generator | None = None
    ) -> tuple[AuxiliaryState, Info]:
        walk = self.metric.whiten_transposed(random.standard_normal(state.position, generator))
        proposal = state.position + self.step_size.to(walk) * walk
        auxiliary = self.estimator.draw_auxiliary(proposal, generator)
        recall = Recall(self.estimator, state)
        density = Density(lambda target: recall(target, auxiliary))
        moved, info = metropolis(
            density, Phase(state.position, log_prob=state.log_prob), proposal, 0.0, generator
        )
        auxiliary = auxiliary.where(info["accepted"][..., None], state.auxiliary)
        assert moved.log_prob is not None
        new = AuxiliaryState(moved.position, auxiliary, moved.log_prob, recall.prepared_at(moved.position))
        return new, info | {"num_zero_estimates": recall.num_zeros}


class AuxiliaryPseudoMarginal(PseudoMarginal):
    """Update u given x, then x given u, each by a kernel for ε(x, u) ρ(u) as a function of that one alone.

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

    def __init__(
        self,
        estimator: Estimator,
        auxiliary: Callable[[Density], Kernel],
        target: Callable[[Density], Kernel],
    ) -> None:
        super().__init__(estimator)
        self.kernels = auxiliary(Density(_unknown)), target(Density(_unknown))

    @torch.no_grad()
    def step(
        self, state: AuxiliaryState, generator: torch.Generator | None = None
    ) -> tuple[AuxiliaryState, Info]:
        kernel, part = self._auxiliary_part(self.kernels[0], state)
        part, first = kernel.step(part, generator)
        log_prob = part.log_density(kernel.density) - self.estimator.law.log_prob(part.position)
        state = state._replace(
            auxiliary=part.position,
            grad=None,
            log_prob=log_prob.where(state.log_prob > -torch.inf, -torch.inf),
        )
        recall = Recall(self.estimator, state)
        kernel, part = self._target_part(self.kernels[1], state, recall)
        part, second = kernel.step(part, generator)
        log_prob = part.log_density(kernel.density)
        state = AuxiliaryState(part.position, state.auxiliary, log_prob, recall.prepared_at(part.position))
        return state, _merge(first, second) | {"num_zero_estimates": recall.num_zeros}

    def parts(self) -> list[Part]:
        """What each of the kernels moves."""
        return [self._auxiliary_part, self._target_part]

    def _auxiliary_part(self, kernel: Kernel, state: AuxiliaryState) -> tuple[Kernel, Phase]:
        recall, law = Recall(self.estimator, state), self.estimator.law
        density = Density(lambda auxiliary: recall(state.position, auxiliary) + law.log_prob(auxiliary))
        here = state.log_prob + law.log_prob(state.auxiliary)
        return kernel.replace(density=density), Phase(state.auxiliary, log_prob=here)

    def _target_part(
        self, kernel: Kernel, state: AuxiliaryState, recall: Recall | None = None
    ) -> tuple[Kernel, Phase]:
        recall = recall or Recall(self.estimator, state)
        density = Density(lambda target: recall(target, state.auxiliary))
        return kernel.replace(density=density), Phase(state.position, log_prob=state.log_prob)

    def reports(self, info: Info) -> list[Info]:
        """The reports of the two kernels, counts excepted."""
        return [
            {key.removesuffix(f"_{name}"): value for key, value in info.items() if key.endswith(f"_{name}")}
            for name in NAMES
        ]


class MetropolisIndependence(Kernel):
    """u' ~ ρ, accepted with probability min(1, γ(u') ρ(u) / (γ(u) ρ(u'))).

    `IndependentMetropolis` with the law of an estimator, which draws by the user's generator itself.  With
    γ = ε(x, ·) ρ the ratio is that of the estimates.  [Graham 2018, algorithm 10]
    """

    def __init__(self, density: Density, law: Law) -> None:
        self.density, self.law = density, law

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        proposal = self.law.draw(state.position, generator)
        log_correction = self.law.log_prob(state.position) - self.law.log_prob(proposal)
        return metropolis(self.density, state, proposal, log_correction, generator)


def pm_mh(estimator: Estimator, step_size: float | Tensor, metric: Metric | None = None) -> PseudoMarginalMH:
    """Pseudo-marginal Metropolis–Hastings: x and u move together."""
    return PseudoMarginalMH(estimator, step_size, metric)


def apm_mi_mh(
    estimator: Estimator, step_size: float | Tensor, metric: Metric | None = None
) -> AuxiliaryPseudoMarginal:
    """u anew from its law, then a random walk in x."""
    return AuxiliaryPseudoMarginal(
        estimator,
        lambda density: MetropolisIndependence(density, estimator.law),
        lambda density: RandomWalkMetropolis(density, step_size, metric),
    )


def apm_ss_mh(
    estimator: Estimator, step_size: float | Tensor, metric: Metric | None = None
) -> AuxiliaryPseudoMarginal:
    """A slice in u, on ellipses or reflected at the faces of its cube, then a random walk in x."""
    return AuxiliaryPseudoMarginal(
        estimator, _slice(estimator), lambda density: RandomWalkMetropolis(density, step_size, metric)
    )


def apm_mi_ss(estimator: Estimator, width: float | Tensor, max_step_out: int = 0) -> AuxiliaryPseudoMarginal:
    """u anew from its law, then a slice in x along a random line."""
    return AuxiliaryPseudoMarginal(
        estimator,
        lambda density: MetropolisIndependence(density, estimator.law),
        lambda density: LinearSlice(density, width, max_step_out),
    )


def apm_ss_ss(estimator: Estimator, width: float | Tensor, max_step_out: int = 0) -> AuxiliaryPseudoMarginal:
    """A slice in u, then a slice in x along a random line: nothing to tune."""
    return AuxiliaryPseudoMarginal(
        estimator, _slice(estimator), lambda density: LinearSlice(density, width, max_step_out)
    )


def _slice(estimator: Estimator) -> Callable[[Density], Kernel]:
    """The slice that suits the law of u."""
    if isinstance(estimator.law, Seeds):
        raise ValueError(
            "slices need an estimate that changes little when u does, which no seed gives: use apm_mi_mh or "
            "apm_mi_ss, or write the estimator as a function of normal or uniform numbers"
        )
    if isinstance(estimator.law, StandardNormal):
        return EllipticalSlice
    return lambda density: ReflectiveSlice(density, width=1.0)


class Recall:
    """log ε(x, u), and what was prepared where the chains are and where they looked last.

    Nothing is prepared twice in a row for an x.  If the estimator works chain by chain, those that stay where
    they looked last, as chains do that wait for others in a slice, are not estimated again.
    """

    def __init__(self, estimator: Estimator, state: AuxiliaryState) -> None:
        self.num_zeros = torch.zeros_like(state.log_prob, dtype=torch.int64)
        self._estimator, self._state, self._last = estimator, state, state
        self._own = False  # whether what was prepared last is a copy that may be changed

    def __call__(self, target: Tensor, auxiliary: Tensor) -> Tensor:
        last, estimator = self._last, self._estimator
        moved = (target != last.position).any(-1)
        asked = moved | (auxiliary != last.auxiliary).any(-1)
        if target.requires_grad or auxiliary.requires_grad or not estimator.chainwise or asked.all():
            prepared = last.prepared
            if target.requires_grad or moved.any():
                prepared, self._own = estimator.prepare(target), False
            value = estimator.log_estimate(target, auxiliary, prepared)
        else:
            prepared, value = last.prepared, last.log_prob.clone()
            if moved.any():
                prepared = prepared if self._own else map_tensors(Tensor.clone, prepared)
                put(moved, estimator.prepare(target[moved]), prepared)
                self._own = True
            part = map_tensors(lambda tensor: tensor[asked], prepared)
            value[asked] = estimator.log_estimate(target[asked], auxiliary[asked], part)
        last = AuxiliaryState(target, auxiliary, value, prepared)
        self._last = map_tensors(Tensor.detach, last)
        self.num_zeros = self.num_zeros + (value.detach() == -torch.inf)
        return value

    def prepared_at(self, target: Tensor) -> Any:
        """What belongs to each chain of `target`, made anew only for those that were elsewhere in between."""
        looked, stayed = ((target == state.position).all(-1) for state in (self._last, self._state))
        if not (looked | stayed).all():
            return self._estimator.prepare(target)
        return choose(looked, self._last.prepared, self._state.prepared)


def put(mask: Tensor, part: Any, whole: Any) -> None:
    """Write the part [m] into the whole [...] where `mask` holds."""

    def write(new: Tensor, old: Tensor) -> Tensor:
        old[mask] = new
        return old

    map_tensors(write, part, whole)


def choose(mask: Tensor, new: Any, old: Any) -> Any:
    """The new tensors where `mask` [...] holds, the old ones elsewhere."""

    def where(new: Tensor, old: Tensor) -> Tensor:
        return new.where(mask.reshape((*mask.shape, *[1] * (new.ndim - mask.ndim))), old)

    return map_tensors(where, new, old)


def _merge(auxiliary: Info, target: Info) -> Info:
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
