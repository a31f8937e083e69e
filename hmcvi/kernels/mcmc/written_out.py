"""Densities written out as tensor operations, which programs are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hmcvi.density import Density, NoValidation
from hmcvi.internal.tracing import Traced

MANY_CHAINS = 16


class WrittenOut(Density):
    """log γ and ∇ log γ as a graph of tensor operations, with the tensors it needs.

    by_column: whether it is faster if the memory of positions has coordinates of all chains side by side.
    """

    def __init__(
        self,
        graph: Callable[..., tuple[Tensor, Tensor]],
        constants: list[Tensor],
        base: WrittenOut | None = None,
        by_column: bool = False,
    ) -> None:
        self._graph, self._constants, self.base, self.by_column = graph, constants, base, by_column

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        return self._graph(position, *self._constants)

    def log_prob(self, position: Tensor) -> Tensor:
        return self.value_and_grad(position)[0]


class TracedDensity:
    """Traces of a density, one for all shapes of positions that it treats alike."""

    def __init__(self, density: Density) -> None:
        self._density = density
        self._base = None if density.base is None else TracedDensity(density.base)
        self._traces: dict[tuple[torch.Size, torch.dtype, torch.device], Traced] = {}

    def at(self, position: Tensor) -> WrittenOut:
        """The density for positions like this one."""
        kind = position.shape, position.dtype, position.device
        if kind not in self._traces:
            self._traces[kind] = self._trace(position)
        trace = self._traces[kind]
        base = None if self._base is None else self._base.at(position)
        # of tensors with more dimensions than positions the compiler makes better loops by itself
        by_column = position[..., 0].numel() >= MANY_CHAINS and trace.rank <= position.ndim
        return WrittenOut(trace.graph, trace.constants(), base, by_column)

    def _trace(self, position: Tensor) -> Traced:
        for trace in self._traces.values():
            if trace.fits(position):
                return trace
        with NoValidation(), torch.no_grad():
            return Traced(self._density.value_and_grad, position)
