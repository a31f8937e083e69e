"""Functions that are computed again when they are differentiated, instead of storing their graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from hmcvi.internal.arena import arena
from hmcvi.internal.compile import Programs

Gradients = Sequence[Tensor | None]
PullBack = Callable[[Gradients], Gradients]

_OPAQUE = (nn.Module, Programs, type, FunctionType, MethodType, BuiltinFunctionType)


def recomputed(function: Callable[..., Any], inputs: tuple[Any, ...], parameters: Iterable[Tensor]) -> Any:
    """function(*inputs), a named tuple, storing no more than the inputs and the parameters.

    Gradients flow through the tensors in it and in tuples within it, not through those in dictionaries.
    """
    random = RandomState(_tensors(inputs)[0].device)
    with torch.no_grad():
        result = function(*inputs)
    cut, own = Cut(inputs), list(dict.fromkeys(parameters))
    given = {id(tensor) for tensor in _tensors(inputs)}
    outputs = _tensors(result)
    moved = [i for i, output in enumerate(outputs) if id(output) not in given]

    def pull_back(weights: Gradients) -> Gradients:
        with torch.enable_grad(), random.again():
            again = _tensors(function(*cut.copy))
        return gradients([again[i] for i in moved], [*cut.leaves, *own], weights)

    kept = [arena.keep(outputs[i]) for i in moved]
    for i, output in zip(moved, attached(kept, [*cut.tensors, *own], pull_back), strict=True):
        outputs[i] = output
    return _with_tensors(result, iter(outputs))


def _tensors(tree: Any) -> list[Tensor]:
    """The tensors of a tuple and of the tuples within it."""
    if isinstance(tree, Tensor):
        return [tree]
    return [tensor for part in tree for tensor in _tensors(part)] if isinstance(tree, tuple) else []


def _with_tensors(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """The same tuple with other tensors."""
    if isinstance(tree, Tensor):
        return next(tensors)
    if not isinstance(tree, tuple):
        return tree
    parts = [_with_tensors(part, tensors) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


def attached(outputs: Sequence[Tensor], inputs: Sequence[Tensor], pull_back: PullBack) -> tuple[Tensor, ...]:
    """Outputs computed without a graph, as functions of `inputs`: pull_back(∂L/∂outputs) = ∂L/∂inputs."""
    # detached again: pull_back may refer to the outputs given, which would otherwise refer to it
    return _Attached.apply(pull_back, [output.detach() for output in outputs], *inputs)


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, pull_back: PullBack, outputs: Sequence[Tensor], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.pull_back = pull_back
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "what is recomputed has first derivatives only: set the chain's memory to 'store'"
            )
        return None, None, *ctx.pull_back(gradients)


class Cut:
    """A copy of `original` whose tensors that require gradients are leaves of their own.

    Looks into tuples, lists, dictionaries and the attributes of plain objects.  `tensors` are the original's,
    `leaves` those of the copy, in the same order.
    """

    def __init__(self, original: Any) -> None:
        self.tensors: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self._copies: dict[int, Any] = {}
        self.copy = self._cut(original)

    def _cut(self, value: Any) -> Any:
        if id(value) not in self._copies:
            self._copies[id(value)] = self._copy(value)
        return self._copies[id(value)]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if not value.requires_grad:
                return value
            self.tensors.append(value)
            self.leaves.append(value.detach().requires_grad_())
            return self.leaves[-1]
        if isinstance(value, tuple):
            parts = [self._cut(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, list):
            return [self._cut(part) for part in value]
        if isinstance(value, dict):
            return {key: self._cut(part) for key, part in value.items()}
        if isinstance(value, _OPAQUE) or not hasattr(value, "__dict__"):
            return value
        new = self._copies[id(value)] = copy.copy(value)  # registered before its parts, which may refer to it
        for name, part in vars(value).items():
            object.__setattr__(new, name, self._cut(part))  # frozen dataclasses too
        return new


def parameters_behind(value: Tensor) -> list[Tensor]:
    """The leaves of the graph of `value`."""
    seen: set[Any] = set()
    todo: list[Any] = [value.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [before for before, _ in node.next_functions]
    return [node.variable for node in seen if hasattr(node, "variable")]


def gradients(outputs: Iterable[Tensor | None], inputs: Sequence[Tensor], weights: Gradients) -> Gradients:
    """Σ ⟨weight, ∂output/∂input⟩ for each input, None where there is no dependence."""
    pairs = [
        (output, weight)
        for output, weight in zip(outputs, weights, strict=True)
        if output is not None and output.requires_grad and weight is not None
    ]
    if not pairs or not inputs:
        return [None] * len(inputs)
    differentiable, given = zip(*pairs, strict=True)
    # graphs of tensors in closures are shared, and needed again
    return torch.autograd.grad(differentiable, inputs, given, allow_unused=True, retain_graph=True)


class RandomState:
    """The state of torch's random generators, to repeat the numbers that follow."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = arena.keep(torch.get_rng_state())
        self._other = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)

    @contextmanager
    def again(self) -> Iterator[None]:
        later = RandomState(self._device)
        self._restore()
        try:
            yield
        finally:
            later._restore()

    def _restore(self) -> None:
        torch.set_rng_state(self._cpu.clone())  # cloned, because it reads from the beginning of the storage
        if self._other is not None:
            torch.get_device_module(self._device).set_rng_state(self._other, self._device)
