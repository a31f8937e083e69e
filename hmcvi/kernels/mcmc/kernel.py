"""Markov kernels that leave one density invariant."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.metrics import Metric

Info = dict[str, Tensor]
# of a kernel made of kernels: (one of them, the whole state) -> that one and the state of what it moves
Part = Callable[["Kernel", Any], tuple["Kernel", Any]]


class Kernel(ABC):
    """init(position) -> state;  step(state, generator=None) -> (state, info).

    Leading dimensions are independent chains.  A chain that fails is rejected, never an exception.
    Kernels are not changed once built: `replace` makes a copy with other settings, and `tuned` names the
    settings that warm-up may choose, the step size so that `target_acceptance` is reached.
    settles: chains may start where only much smaller steps than later are accepted; warm-up begins with them.
    chunk: how many transitions `steps` makes.
    """

    density: Density
    uses_gradient: bool = False
    tuned: tuple[str, ...] = ()
    settles: bool = False
    chunk: int = 1
    target_acceptance: float = 0.0
    step_size: Tensor  # of those that have one
    metric: Metric  # likewise

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

    def steps(self, state: Any, generator: torch.Generator | None = None) -> tuple[Any, Any, Info]:
        """`chunk` transitions in a row: the last state, and all states and diagnostics [chunk, ...]."""
        new, info = self.step(state, generator)
        return new, map_tensors(lambda part: part[None], new), {k: value[None] for k, value in info.items()}

    @torch.no_grad()
    def tempered_step(
        self, state: Phase, beta: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Phase, Info]:
        """One transition that leaves γ_β = base^{1−β} γ^β invariant, for a density with a base.

        β: [] or one per chain [...].  Whatever it is, the state carries log γ of the density itself, so that
        β may be another one at every step.
        """
        kernel = self.replace(density=self.density.bridge(beta))
        new, info = kernel.step(Phase(state.position, state.momentum), generator)
        return Phase(new.position, new.momentum, self.density.finite_log_prob(new.position)), info

    def single_step(self) -> Kernel:
        """The shortest move of this kind, from which warm-up learns the magnitude of the step size."""
        return self

    def replace(self, **settings: Any) -> Self:
        """The same kernel with some settings changed."""
        new = copy.copy(self)
        for name, value in settings.items():
            if not hasattr(self, name):
                raise AttributeError(f"{type(self).__name__} has no setting {name!r}")
            setattr(new, name, value)
        return new

    def conditional(self, position: Tensor, block: slice | Tensor) -> Self:
        """The kernel that moves the coordinates `block`, the others fixed as in `position` [..., d]."""
        return self.replace(density=self.density.conditional(position, block))


def map_tensors(function: Callable[..., Tensor], *trees: Any) -> Any:
    """Tensors, None, or named tuples of them, entry by entry."""
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return function(*trees)
    return type(first)(*(map_tensors(function, *parts) for parts in zip(*trees, strict=True)))


def positive(value: float | Tensor, name: str) -> Tensor:
    """A setting that must be positive, as a tensor."""
    tensor = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)
    if not (tensor > 0).all() or not tensor.isfinite().all():
        raise ValueError(f"{name} must be positive, got {value}")
    return tensor.detach()
