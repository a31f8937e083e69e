"""Markov kernels that leave one density invariant."""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density

Info = dict[str, Tensor]


class Kernel(ABC):
    """init(position) -> state;  step(state, generator=None) -> (state, info).

    Leading dimensions are independent chains.  A chain that fails is rejected, never an exception.

    A kernel is a frozen dataclass: its settings are its fields, checked in `__post_init__`, and `replace`
    makes a copy with other settings that is checked in the same way.
    """

    density: Density
    uses_gradient: bool = False

    @torch.no_grad()
    def init(self, position: Tensor) -> Any:
        """The state of chains at `position` [..., d]."""
        position = position.detach()
        self.density.check(position, self.uses_gradient)
        if hasattr(self, "metric"):
            self.metric.check(position)
        if self.uses_gradient:
            return Phase(position).evaluate(self.density)
        return Phase(position, log_prob=self.density.finite_log_prob(position))

    @abstractmethod
    def step(self, state: Any, generator: torch.Generator | None = None) -> tuple[Any, Info]:
        """One transition, and its diagnostics [...]."""

    def replace(self, **settings: Any) -> Self:
        """The same kernel with some settings changed."""
        if unknown := sorted(settings.keys() - _names(type(self))):
            raise AttributeError(f"{type(self).__name__} has no setting {unknown[0]!r}")
        return dataclasses.replace(self, **settings)  # type: ignore[type-var]


@functools.cache
def _names(kind: type[Kernel]) -> frozenset[str]:
    """Of the settings of a kernel."""
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} must be a dataclass to have its settings replaced")
    return frozenset(field.name for field in dataclasses.fields(kind) if field.init)


MakeKernel = Callable[[Density], Kernel]
