"""Functions of tensors recorded as straight lists of tensor operations, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from hmcvi.internal.recorder import Program, Recorder, Untraceable

__all__ = ["Recorded", "Replayed", "Untraceable", "holds"]

Function = Callable[..., tuple[Tensor, ...]]


# of the function that this thread records at the moment
_assumptions: ContextVar[list[Tensor] | None] = ContextVar("assumptions", default=None)


def holds(condition: Tensor) -> bool:
    """Whether a condition holds for all.  While a function is recorded it is assumed."""
    assumed = _assumptions.get()
    if assumed is None:
        return bool(condition.all())
    assumed.append(condition.all())
    return True


@contextmanager
def _assuming() -> Iterator[list[Tensor]]:
    assumed: list[Tensor] = []
    token = _assumptions.set(assumed)
    try:
        yield assumed
    finally:
        _assumptions.reset(token)


def _all_hold(assumptions: list[Tensor], recorder: Recorder) -> Tensor:
    """Whether everything that was assumed holds, and no linear algebra has failed.  []"""
    successes = [(failure == 0).all() for failure in recorder.failures]
    return torch.stack([torch.ones((), dtype=torch.bool), *assumptions, *successes]).all()


class Replayed:
    """The values of `function` of tensors of these shapes, by a program that is recorded at examples of them.

    Gradients within it are part of the program; nothing can be differentiated through it.  Otherwise as
    `Recorded`.

    most: numbers in all tensors that are computed; with more, it is not recorded, which keeps them all.
    """

    def __init__(self, function: Function, examples: Sequence[Tensor], most: int | None = None) -> None:
        inputs = [example.detach().clone() for example in examples]
        recorder = Recorder(inputs, most)
        with recorder, _assuming() as assumptions:
            values = (*function(*inputs), _all_hold(assumptions, recorder))
        outputs = [recorder.value(value) for value in values]
        self._program = Program(recorder.operations, recorder.constants, recorder.inputs, outputs)

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...] | None:
        """The values, or None if something that was assumed does not hold."""
        with torch.no_grad():
            *values, assumed = self._program.run(*arguments)
        return tuple(values) if bool(assumed) else None


class Recorded:
    """`function`, without the Python that defined it and without a graph of autograd.

    By two programs that are made once, at examples of its arguments: one for its values, one for the
    gradients of those arguments that require them.  Tensors other than the arguments are constants, shapes
    are those of the examples.  It must branch on values by `holds` alone.  First derivatives only.
    """

    def __init__(self, function: Function, examples: Sequence[Tensor]) -> None:
        inputs = [example.detach().clone().requires_grad_(example.requires_grad) for example in examples]
        self._wanted = [i for i, tensor in enumerate(inputs) if tensor.requires_grad]
        sources = [inputs[i] for i in self._wanted]
        recorder = Recorder(inputs)
        with _assuming() as assumptions:
            with recorder, torch.enable_grad():
                values = function(*inputs)
            weights = [torch.ones_like(value) for value in values]
            given = [recorder.new(weight) for weight in weights]
            with recorder:
                found = torch.autograd.grad(values, sources, weights, allow_unused=True)
                grads = [torch.zeros_like(x) if g is None else g for x, g in zip(sources, found, strict=True)]
                holds_all = _all_hold(assumptions, recorder)
        self._size = len(values)
        outputs = [recorder.value(value) for value in (*values, holds_all)]
        results = [recorder.value(grad) for grad in grads]
        late = set(given)
        for operation in recorder.operations:
            if late.intersection(operation.sources):
                late.update(operation.results)
        second = [operation for operation in recorder.operations if late.intersection(operation.results)]
        used = dict.fromkeys(source for operation in second for source in operation.sources)
        kept = [v for v in dict.fromkeys((*used, *results)) if v not in late and v not in recorder.constants]
        first = [operation for operation in recorder.operations if not late.intersection(operation.results)]
        self._first = Program(first, recorder.constants, recorder.inputs, [*outputs, *kept])
        self._second = Program(second, recorder.constants, [*given, *kept], results)
        self.num_operations = self._first.num_operations + self._second.num_operations

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...] | None:
        """The values, or None if something that was assumed does not hold."""
        with torch.no_grad():
            outputs = self._first.run(*arguments)
        values, assumed, kept = outputs[: self._size], outputs[self._size], outputs[self._size + 1 :]
        if not bool(assumed):
            return None
        if not torch.is_grad_enabled():
            return tuple(values)
        sources = [arguments[i] for i in self._wanted]
        attached: tuple[Tensor, ...] = _Attached.apply(self._second, kept, values, *sources)
        return attached


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, second: Program, kept: list[Tensor], values: list[Tensor], *sources: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.second, ctx.kept = second, kept
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *weights: Tensor) -> tuple[Any, ...]:
        return None, None, None, *ctx.second.run(*weights, *ctx.kept)
