"""Unbiased estimates of a density, as functions of the random numbers that they use."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hmcvi.internal.checks import at_least, one_of
from hmcvi.internal.layout import Layout
from hmcvi.internal.random import standard_normal, uniform
from hmcvi.internal.trees import map_tensors

LARGEST_SEED = 2**53  # whole numbers up to it are exact in float64


class AuxiliaryDistribution(ABC):
    """The distribution ρ of the auxiliary variables, independent of each other."""

    @abstractmethod
    def draw(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """u ~ ρ, one number for each of `like` [..., m]."""

    @abstractmethod
    def perturb(self, auxiliary: Tensor, correlation: float, generator: torch.Generator | None) -> Tensor:
        """u' near u, by a reversible step that leaves ρ invariant; u' ~ ρ if correlation is 0.  [..., m]"""

    @abstractmethod
    def log_prob(self, auxiliary: Tensor) -> Tensor:
        """log ρ(u) up to a constant  [..., m] -> [...]"""


class StandardNormal(AuxiliaryDistribution):
    """ρ = N(0, I)"""

    def draw(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return standard_normal(like, generator)

    def perturb(self, auxiliary: Tensor, correlation: float, generator: torch.Generator | None) -> Tensor:
        """u' = r u + √(1 − r²) n, n ~ N(0, I).  [Graham 2018, (3.20)]"""
        fresh = standard_normal(auxiliary, generator)
        return correlation * auxiliary + math.sqrt(1 - correlation**2) * fresh

    def log_prob(self, auxiliary: Tensor) -> Tensor:
        return -0.5 * auxiliary.square().sum(-1)


class UnitUniform(AuxiliaryDistribution):
    """ρ = U[0, 1]^m"""

    def draw(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return uniform(like, generator)

    def perturb(self, auxiliary: Tensor, correlation: float, generator: torch.Generator | None) -> Tensor:
        """u' = Φ(r Φ⁻¹(u) + √(1 − r²) n)"""
        if correlation == 0:
            return self.draw(auxiliary, generator)
        kind = torch.finfo(auxiliary.dtype)
        normal = torch.special.ndtri(auxiliary.clamp(kind.tiny, 1 - kind.eps))
        return torch.special.ndtr(StandardNormal().perturb(normal, correlation, generator))

    def log_prob(self, auxiliary: Tensor) -> Tensor:
        inside = ((auxiliary >= 0) & (auxiliary <= 1)).all(-1)
        return torch.zeros_like(auxiliary[..., 0]).where(inside, -torch.inf)


class Seeds(UnitUniform):
    """One number of the unit interval that stands for the state of a generator."""


DISTRIBUTIONS: dict[str, AuxiliaryDistribution] = {
    "normal": StandardNormal(),
    "uniform": UnitUniform(),
    "seed": Seeds(),
}


class Estimator:
    """Unbiased estimate ε(x, u) ≥ 0 of a density, whose mean over u ~ ρ is γ(x), as a function.

    log_estimate(x [..., d], u [..., m]) -> log ε(x, u) [...], the same whenever it is called; −inf where the
        estimate is zero.
    auxiliary_dim: m.  law: the distribution ρ of u, "normal" (N(0, I)) or "uniform" (on the unit cube).
    prepare(x): what depends on x alone and costs much, a tensor [..., *] or a named tuple of them.
        log_estimate takes it as a third argument; updates of u never ask for it again.
    shapes: {name: shape}; both functions then take a dict of named variables [..., *shape] in place of x.
    chainwise: both functions take any batch of chains and know nothing of the others, so that those that wait
        for others can be left out.

    >>> noisy = Estimator(lambda x, u: -0.5 * x.square().sum(-1) + u.sum(-1) - 1.0, auxiliary_dim=2)
    >>> noisy.log_estimate(torch.zeros(3, 4), torch.zeros(3, 2)).tolist()
    [-1.0, -1.0, -1.0]
    """

    def __init__(
        self,
        log_estimate: Callable[..., Tensor],
        auxiliary_dim: int,
        law: str = "normal",
        prepare: Callable[[Tensor], Any] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        chainwise: bool = False,
    ) -> None:
        at_least(1, auxiliary_dim=auxiliary_dim)
        one_of("law", law, DISTRIBUTIONS)
        self.auxiliary_dim, self.distribution = auxiliary_dim, DISTRIBUTIONS[law]
        self.layout = None if shapes is None else Layout(shapes)
        self.chainwise = chainwise
        self._log_estimate, self._prepare = log_estimate, prepare

    @property
    def law(self) -> AuxiliaryDistribution:
        """ρ, the `distribution` that was chosen by the argument `law`."""
        return self.distribution

    def prepare(self, target: Tensor) -> Any:
        """What depends on x alone, None if nothing does.  [..., d] -> tensors [..., *]"""
        return None if self._prepare is None else self._prepare(self._named(target))

    def log_estimate(self, target: Tensor, auxiliary: Tensor, prepared: Any = None) -> Tensor:
        """log ε(x, u), −inf where it is no number.  [..., d], [..., m] -> [...]"""
        value = self._evaluate(target, auxiliary, prepared)
        return value.where(value.isfinite(), -torch.inf)

    def _evaluate(self, target: Tensor, auxiliary: Tensor, prepared: Any) -> Tensor:
        given = () if self._prepare is None else (prepared,)
        return self._log_estimate(self._named(target), auxiliary, *given)

    def _named(self, target: Tensor) -> Any:
        return target if self.layout is None else self.layout.unflatten(target)

    def draw_auxiliary(self, target: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """u ~ ρ for each chain of `target` [..., d]  ->  [..., m]"""
        return self.distribution.draw(target.new_empty(*target.shape[:-1], self.auxiliary_dim), generator)

    def with_fixed_numbers(self, target: Tensor) -> Tensor:
        """log ε(x, u) with one and the same u for all chains.  [..., d] -> [...]"""
        one = self.draw_auxiliary(target.flatten()[None, :1], torch.Generator(target.device).manual_seed(0))
        auxiliary = one[0].expand(*target.shape[:-1], self.auxiliary_dim)
        return self.log_estimate(target, auxiliary, self.prepare(target))

    def check(self, target: Tensor, auxiliary: Tensor) -> None:
        """Refuse an estimator that a chain cannot run on, by two evaluations.  [..., d], [..., m]"""
        if auxiliary.shape != (*target.shape[:-1], self.auxiliary_dim):
            raise ValueError(
                f"the auxiliary variables of positions {list(target.shape)} must be "
                f"{[*target.shape[:-1], self.auxiliary_dim]}, got {list(auxiliary.shape)}"
            )
        prepared = self.prepare(target)
        value, again = (self._evaluate(target, auxiliary, prepared) for _ in range(2))
        if not isinstance(value, Tensor) or value.shape != target.shape[:-1]:
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"log_estimate must return one number per chain, {list(target.shape[:-1])}, got {got}"
            )
        if value.isnan().any():
            raise ValueError(
                "log_estimate is NaN at the initial positions: estimates must not be negative, a zero is −inf"
            )
        if not torch.equal(value, again):
            name = getattr(self._log_estimate, "__qualname__", type(self._log_estimate).__name__)
            raise ValueError(
                f"{name} gave two estimates for the same x and u: it must draw nothing of its own. Make its "
                "random numbers of u, or use SeededEstimator"
            )


class SeededEstimator(Estimator):
    """Estimator made of a black box: log_estimate(x [d], generator) -> log ε, a number.

    It draws from `generator` alone, whose state is the auxiliary variable, one per chain; chains are run one
    after another.  For kernels that draw u anew (PM-MH, APM-MI+…): no small change of a seed makes a small
    change of ε.  With `shapes` it takes a dict of named variables {name: shape} in place of x.

    >>> box = SeededEstimator(lambda x, generator: torch.randn((), generator=generator) - x.square().sum())
    >>> u = torch.tensor([[0.1], [0.1], [0.7]], dtype=torch.float64)
    >>> first, again, other = box.log_estimate(torch.zeros(3, 2, dtype=torch.float64), u)
    >>> bool(first == again), bool(first == other)
    (True, False)
    """

    def __init__(
        self,
        log_estimate: Callable[[Any, torch.Generator], Tensor],
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        def batched(target: Tensor, auxiliary: Tensor) -> Tensor:
            seeds = (auxiliary[..., 0].double() * LARGEST_SEED).long()
            rows = target.reshape(-1, target.shape[-1])
            values = [
                log_estimate(self._variables(x), torch.Generator(x.device).manual_seed(seed))
                for x, seed in zip(rows, seeds.flatten().tolist(), strict=True)
            ]
            return torch.stack([torch.as_tensor(v).to(target) for v in values]).view(target.shape[:-1])

        super().__init__(batched, 1, "seed", shapes=shapes)

    def _named(self, target: Tensor) -> Tensor:
        return target  # one vector for all chains, named for each of them

    def _variables(self, x: Tensor) -> Any:
        return x if self.layout is None else self.layout.unflatten(x)


class AuxiliaryState(NamedTuple):
    """Where a chain is, and the random numbers of its estimate.  Leading dimensions are chains."""

    position: Tensor  # x  [..., d]
    auxiliary: Tensor  # u  [..., m]
    log_prob: Tensor  # log ε(x, u)  [...]
    prepared: Any = None  # what the estimator made of x alone
    grad: Tensor | None = None  # ∇log ε by (x, u), if a kernel asked for it  [..., d + m]


class CachedEstimates:
    """log ε(x, u), with what was prepared where the chains are and where they were evaluated last.

    Nothing is prepared twice in a row for an x.  If the estimator works chain by chain, those at the place of
    their last evaluation, as chains are that wait for others in a slice, are not estimated again.
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
                _put(moved, estimator.prepare(target[moved]), prepared)
                self._own = True
            part = map_tensors(lambda tensor: tensor[asked], prepared)
            value[asked] = estimator.log_estimate(target[asked], auxiliary[asked], part)
        last = AuxiliaryState(target, auxiliary, value, prepared)
        self._last = map_tensors(Tensor.detach, last)
        self.num_zeros = self.num_zeros + (value.detach() == -torch.inf)
        return value

    def prepared_at(self, target: Tensor) -> Any:
        """What belongs to `target` [..., d]; prepared again if a chain has been evaluated elsewhere since."""
        looked, stayed = ((target == state.position).all(-1) for state in (self._last, self._state))
        if not (looked | stayed).all():
            return self._estimator.prepare(target)
        return choose(looked, self._last.prepared, self._state.prepared)


def _put(mask: Tensor, part: Any, whole: Any) -> None:
    """Write the part [k] into the whole [...] where `mask` [...] holds."""

    def write(new: Tensor, old: Tensor) -> Tensor:
        old[mask] = new
        return old

    map_tensors(write, part, whole)


def choose(mask: Tensor, new: Any, old: Any) -> Any:
    """The new tensors where `mask` [...] holds, the old ones elsewhere."""

    def where(new: Tensor, old: Tensor) -> Tensor:
        return new.where(mask.reshape((*mask.shape, *[1] * (new.ndim - mask.ndim))), old)

    return map_tensors(where, new, old)
