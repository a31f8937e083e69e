"""What a pass through a chain shares: the data, networks of it, random numbers, memory and programs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from hmcvi.internal.compile import Programs
from hmcvi.internal.random import standard_normal, uniform

T = TypeVar("T")


class Randomness:
    """The random numbers of a pass, one for each of `like`; torch's own unless a generator is given."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def normal(self, like: Tensor) -> Tensor:
        """n ~ N(0, I), shaped like vectors [..., d]."""
        return standard_normal(like, self.generator)

    def uniform(self, like: Tensor) -> Tensor:
        """u ~ U[0, 1), shaped like numbers [...]."""
        return uniform(like, self.generator)

    def subset(self, total: int, size: int) -> Tensor:
        """`size` of the numbers 0, …, total − 1, in order; the same for all data, however they are shared."""
        device = None if self.generator is None else self.generator.device
        return torch.randperm(total, generator=self.generator, device=device)[:size].sort().values


class Share(Randomness):
    """The random numbers of the data start, …, stop − 1 of a batch of `total`, as if drawn for all of it.

    Processes that share a batch, all with the same seed, move every datum as a single process would.
    Data are the last dimension but that of a vector: [..., data, d] and [..., data].
    """

    def __init__(self, start: int, stop: int, total: int) -> None:
        super().__init__()
        if not 0 <= start < stop <= total:
            raise ValueError(f"a share {start}, …, {stop} − 1 of a batch of {total} is empty or beyond it")
        self._start, self._stop, self._total = start, stop, total

    def normal(self, like: Tensor) -> Tensor:
        return self._part(super().normal(self._whole(like, -2)), -2)

    def uniform(self, like: Tensor) -> Tensor:
        return self._part(super().uniform(self._whole(like, -1)), -1)

    def _whole(self, like: Tensor, dim: int) -> Tensor:
        if like.shape[dim] != self._stop - self._start:
            raise ValueError(f"a share of {self._stop - self._start} data, got {list(like.shape)}")
        shape = list(like.shape)
        shape[dim] = self._total
        return like.new_empty(()).expand(shape)

    def _part(self, whole: Tensor, dim: int) -> Tensor:
        return whole.narrow(dim, self._start, self._stop - self._start)


class Context:
    """The data x that steps condition on, outputs of networks of it in this pass, and its random numbers.

    Steps of one chain share networks of x (mass, step size, first layers of reverse models);
    `context(network)` computes network(x) once per pass, with gradients if the pass has them.
    memory, programs: what the chain keeps for its gradient and what it has compiled (see `hmcvi.Chain`).
    """

    memory: str = "store"
    programs: Programs | None = None

    def __init__(self, data: Tensor | None, randomness: Randomness | None = None) -> None:
        self.data, self.randomness = data, randomness or Randomness()
        self._differentiable = torch.is_grad_enabled()
        self._memo: dict[Callable[[Tensor], Tensor], Tensor] = {}
        self._last: dict[Hashable, tuple[Tensor, Any]] = {}

    @classmethod
    def of(cls, context: Tensor | Context | None) -> Context:
        return context if isinstance(context, Context) else cls(context)

    def remembering(self, memory: str, programs: Programs | None) -> Self:
        """The same pass, for a chain with this memory and these programs."""
        if memory == self.memory and programs is self.programs:
            return self
        new = copy.copy(self)
        new.memory, new.programs = memory, programs
        return new

    def __call__(self, network: Callable[[Tensor], Tensor]) -> Tensor:
        if self.data is None:
            raise ValueError("this step has a network of x: pass the data as context=x")
        if network not in self._memo:
            with torch.set_grad_enabled(self._differentiable):
                self._memo[network] = network(self.data)
        return self._memo[network]

    def at(self, position: Tensor, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` gave for this very tensor, computed again only when the chain has moved on."""
        last = self._last.get(key)
        if last is None or last[0] is not position:
            last = self._last[key] = position, compute()
        found: T = last[1]
        return found
