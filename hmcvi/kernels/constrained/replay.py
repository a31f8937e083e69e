"""A manifold whose points are computed by recorded programs, without Python and graphs behind them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hmcvi.internal.compile import Programs
from hmcvi.internal.recorded import Replayed, Untraceable
from hmcvi.kernels.constrained.jacobian import Linearization
from hmcvi.kernels.constrained.manifold import Manifold, ManifoldPoint
from hmcvi.models.generator import Generator


class ReplayedManifold(Manifold):
    """The same manifold: `linearize` and `at` are recorded at the first positions of a shape.

    The generator is taken to do the same with all positions of a shape.  One that branches on their values is
    computed as it comes.
    """

    def __init__(self, generator: Generator, observed: Tensor) -> None:
        super().__init__(generator, observed)
        self._programs = Programs()

    def select(self, rows: Tensor) -> Manifold:
        """The manifolds of some of the chains, whose number changes: without programs."""
        return Manifold(self.generator, self.observed).select(rows)

    def linearize(self, position: Tensor) -> Linearization:
        compute = super().linearize
        if torch.is_grad_enabled():
            return compute(position)
        parts = self._replay(lambda u: compute(u).tensors, "linearize", position)
        return compute(position) if parts is None else self.form.of(*parts)

    def at(self, position: Tensor) -> ManifoldPoint:
        compute = super().at

        def tensors(position: Tensor) -> tuple[Tensor, ...]:
            log_prob, grad, jacobian = compute(position)
            return log_prob, grad, *jacobian.tensors

        if (found := self._replay(tensors, "at", position)) is None:
            return compute(position)
        log_prob, grad, *parts = found
        return ManifoldPoint(log_prob, grad, self.form.of(*parts))

    def _replay(
        self, compute: Callable[[Tensor], tuple[Tensor, ...]], name: str, position: Tensor
    ) -> tuple[Tensor, ...] | None:
        def record() -> Replayed | None:
            try:
                return Replayed(compute, [position])
            except Untraceable:
                return None

        program = self._programs.get((name, position.shape), record)
        return None if program is None else program(position)
