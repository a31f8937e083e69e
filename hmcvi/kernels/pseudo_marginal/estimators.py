"""Unbiased estimates of a density, as functions of the random numbers that they use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hmcvi.internal import random
from hmcvi.internal.layout import Layout

LARGEST_SEED = 2**53  # whole numbers up to it are exact in float64


class Law(Protocol):
    """The law ρ of the auxiliary variables, independent of each other."""

    def draw(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """u ~ ρ, one number for each of `like` [..., m]."""

    def log_prob(self, auxiliary: Tensor) -> Tensor:
        """log ρ(u) up to a constant  [..., m] -> [...]"""


class StandardNormal:
    """ρ = N(0, I)"""

    def draw(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return random.standard_normal(like, generator)

    def log_prob(self, auxiliary: Tensor) -> Tensor:
        return -0.5 * auxiliary.square().sum(-1)


class UnitUniform:
    """ρ uniform on the unit cube"""

    def draw(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return random.uniform(like, generator)

    def log_prob(self, auxiliary: Tensor) -> Tensor:
        inside = ((auxiliary >= 0) & (auxiliary <= 1)).all(-1)
        return torch.zeros_like(auxiliary[..., 0]).where(inside, -torch.inf)


class Seeds(UnitUniform):
    """One number of the unit interval that stands for the state of a generator."""


LAWS: dict[str, Law] = {"normal": StandardNormal(), "uniform": UnitUniform(), "seed": Seeds()}


class Estimator:
    """ε(x, u) ≥ 0 whose mean over u ~ ρ is γ(x): an unbiased estimate of a density, as a function.

    log_estimate(x [..., d], u [..., m]) -> log ε(x, u) [...], the same whenever it is called; −inf where the
        estimate is zero.
    auxiliary_dim: m.  law: of u, "normal" (N(0, I)) or "uniform" (on the unit cube).
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
        if auxiliary_dim < 1:
            raise ValueError(f"auxiliary_dim must be at least 1, got {auxiliary_dim}")
        if law not in LAWS:
            raise ValueError(f"law must be one of {', '.join(LAWS)}, got {law!r}")
        self.auxiliary_dim, self.law = auxiliary_dim, LAWS[law]
        self.layout = None if shapes is None else Layout(shapes)
        self.chainwise = chainwise
        self._log_estimate, self._prepare = log_estimate, prepare

    def prepare(self, target: Tensor) -> Any:
        """What depends on x alone; None if nothing does."""
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
        return self.law.draw(target.new_empty(*target.shape[:-1], self.auxiliary_dim), generator)

    def with_fixed_numbers(self, target: Tensor) -> Tensor:
        """log ε(x, u) with one and the same u for all chains.  [..., d] -> [...]"""
        one = self.draw_auxiliary(target.flatten()[None, :1], torch.Generator(target.device).manual_seed(0))
        auxiliary = one[0].expand(*target.shape[:-1], self.auxiliary_dim)
        return self.log_estimate(target, auxiliary, self.prepare(target))

    def check(self, target: Tensor, auxiliary: Tensor) -> None:
        """Refuse an estimator that a chain cannot run on, by two evaluations."""
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
    """A black box: log_estimate(x [d], generator) -> log ε, a number, drawing from `generator` alone.

    The state of the generator is the auxiliary variable, one per chain; chains are run one after another.
    For kernels that draw u anew (PM-MH, APM-MI+…): no small change of a seed makes a small change of ε.

    >>> box = SeededEstimator(lambda x, generator: torch.randn((), generator=generator) - x.square().sum())
    >>> u = torch.tensor([[0.1], [0.1], [0.7]], dtype=torch.float64)
    >>> first, again, other = box.log_estimate(torch.zeros(3, 2, dtype=torch.float64), u)
    >>> bool(first == again), bool(first == other)
    (True, False)
    """

    def __init__(
        self,
        log_estimate: Callable[[Tensor, torch.Generator], Tensor],
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        def batched(target: Tensor, auxiliary: Tensor) -> Tensor:
            seeds = (auxiliary[..., 0].double() * LARGEST_SEED).long()
            values = [
                log_estimate(x, torch.Generator(x.device).manual_seed(seed))
                for x, seed in zip(
                    target.reshape(-1, target.shape[-1]), seeds.flatten().tolist(), strict=True
                )
            ]
            return torch.stack([torch.as_tensor(v).to(target) for v in values]).view(target.shape[:-1])

        super().__init__(batched, 1, "seed", shapes=shapes)
