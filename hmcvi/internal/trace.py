"""Functions of tensors recorded as straight lists of tensor operations, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
RESHAPES = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}
FILLED = {aten.zeros_like.default, aten.ones_like.default, aten.full_like.default}  # whatever they are like
SMALL = 1024  # numbers of a constant that is compared to others
Function = Callable[..., tuple[Tensor, ...]]


class Untraceable(RuntimeError):
    """A function that is more than a list of tensor operations."""


_assumptions: list[Tensor] | None = None


def holds(condition: Tensor) -> bool:
    """Whether a condition holds for all.  While a function is traced it is taken to, and looked at later."""
    if _assumptions is None:
        return bool(condition.all())
    _assumptions.append(condition.all())
    return True


@contextmanager
def _assuming() -> Iterator[list[Tensor]]:
    global _assumptions
    before, _assumptions = _assumptions, []
    try:
        yield _assumptions
    finally:
        _assumptions = before


class Value(NamedTuple):
    """A tensor of the program, by its number."""

    number: int


@dataclass
class Operation:
    """results = function(*args, **kwargs), with values in place of tensors."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Value]
    single: bool
    sources: list[Value] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Records what is done with tensors: constants are computed once, repetitions and empty steps left out.

    A tensor is known by the memory that it sees, which is kept until the end.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.constants: dict[Value, Tensor] = {}
        self._tensors: list[Tensor] = []  # by number
        self._numbers: dict[Any, Value] = {}  # by memory
        self._views: dict[int, set[Any]] = {}  # memory of each storage
        self._roots: dict[Value, Value] = {}  # of what is a mere reshaping
        self._known: dict[str, list[Value]] = {}
        self._small: dict[Any, Value] = {}
        self.failures: list[Tensor] = []  # numbers of failures of linear algebra
        self.inputs = [self._new(tensor) for tensor in inputs]

    def _new(self, tensor: Tensor) -> Value:
        value = Value(len(self._tensors))
        self._tensors.append(tensor)
        self._place(tensor, value)
        return value

    def _place(self, tensor: Tensor, value: Value) -> None:
        key = _memory(tensor)
        self._numbers[key] = value
        self._views.setdefault(key[0], set()).add(key)

    def value(self, tensor: Tensor) -> Value:
        """The number of a tensor; of a constant, if it was not computed here."""
        found = self._numbers.get(_memory(tensor))
        return self._constant(tensor.detach()) if found is None else found

    def _constant(self, tensor: Tensor) -> Value:
        """A constant; small ones of equal numbers are one."""
        if tensor.numel() > SMALL:
            value = self._new(tensor)
        else:
            key = (tensor.dtype, tensor.shape, tensor.cpu().numpy().tobytes())
            value = self._small.setdefault(key, Value(len(self._tensors)))
            self._tensors.append(tensor)
            self._place(tensor, value)
        self.constants.setdefault(value, tensor)
        return value

    def _input(self, tensor: Tensor) -> Value:
        """A tensor that is given from now on, whatever it was made of."""
        return self._new(tensor)

    def shape(self, value: Value) -> torch.Size:
        return self._tensors[value.number].shape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        sources: list[Value] = []
        encoded = _replace(args, self._seen(sources)), _replace(kwargs, self._seen(sources))
        is_constant = func in FILLED or all(source in self.constants for source in sources)
        if func is aten._local_scalar_dense.default and not is_constant:
            raise Untraceable("it branches on values")
        mutated = args[0] if func._schema.is_mutable else None
        if mutated is not None and len(self._views[_memory(mutated)[0]]) > 1:
            raise Untraceable(f"{func} changes a tensor that is seen elsewhere")
        result = func(*args, **kwargs)
        outputs = (
            [result]
            if isinstance(result, Tensor)
            else list(result)
            if isinstance(result, tuple | list)
            else []
        )
        if not all(isinstance(output, Tensor) for output in outputs):
            raise Untraceable(f"{func} returns more than tensors")
        if func is aten.pow.Tensor_Scalar and args[1] == 0:
            is_constant = True
        if is_constant:
            for output in outputs:
                self._constant(output)
        elif func is aten._linalg_check_errors.default:
            self.failures.append(args[0])
        elif not outputs:
            raise Untraceable(f"{func} has effects")
        else:
            self._record(
                _functional(func), *encoded, sources, outputs, isinstance(result, Tensor), mutated is not None
            )
        return result

    def _seen(self, sources: list[Value]) -> Callable[[Tensor], Value]:
        def see(tensor: Tensor) -> Value:
            sources.append(self.value(tensor))
            return sources[-1]

        return see

    def _record(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        sources: list[Value],
        outputs: list[Tensor],
        single: bool,
        mutates: bool,
    ) -> None:
        if not mutates and all(_memory(output) in self._numbers for output in outputs):
            return  # a view of the same
        if func in RESHAPES or self._sums_nothing(func, args, kwargs):
            root, shape = self._roots.get(sources[0], sources[0]), outputs[0].shape
            if self.shape(root) == shape:
                self._place(outputs[0], root)
                self._tensors.append(outputs[0])  # keeps its memory
                return
            func, args, kwargs, sources = aten.reshape.default, (root, list(shape)), {}, [root]
        elif (same := self._neutral(func, args, kwargs, outputs[0])) is not None:
            self._place(outputs[0], same)
            self._tensors.append(outputs[0])
            return
        key = f"{func} {args} {kwargs}"
        known = self._known.get(key)
        if known is not None:
            for output, value in zip(outputs, known, strict=True):
                self._place(output, value)
                self._tensors.append(output)
            return
        self._known[key] = results = [self._new(output) for output in outputs]
        self.operations.append(Operation(func, args, kwargs, results, single, sources))
        if func is aten.reshape.default:
            self._roots[results[0]] = sources[0]

    def _sums_nothing(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether it sums over dimensions of size one."""
        if func is not aten.sum.dim_IntList or kwargs or not args[1]:
            return False
        return all(self.shape(args[0])[dim] == 1 for dim in args[1])

    def _neutral(self, func: Any, args: Any, kwargs: Any, output: Tensor) -> Value | None:
        """The argument that an operation returns: x · 1, x + 0, x¹."""
        if kwargs or len(args) != 2:
            return None
        pairs = {
            aten.mul.Tensor: ((args, 1), (args[::-1], 1)),
            aten.add.Tensor: ((args, 0), (args[::-1], 0)),
            aten.mul.Scalar: ((args, 1),),
            aten.pow.Tensor_Scalar: ((args, 1),),
        }.get(func, ())
        for (one, other), number in pairs:
            constant = self.constants.get(other) if isinstance(other, Value) else other
            if (
                isinstance(one, Value)
                and constant is not None
                and bool(torch.as_tensor(constant == number).all())
            ):
                tensor = self._tensors[one.number]
                if tensor.shape == output.shape and tensor.dtype == output.dtype:
                    return one
        return None


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """What of the memory a tensor sees."""
    storage = tensor.untyped_storage().data_ptr()
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _functional(func: Any) -> Any:
    """The operation that returns what another one leaves in its first argument."""
    if not func._schema.is_mutable:
        return func
    packet = getattr(aten, func._schema.name.split("::")[1].removesuffix("_"), None)
    if packet is None or not hasattr(packet, func._overloadname):
        raise Untraceable(f"{func} changes its argument")
    return getattr(packet, func._overloadname)


def _replace(tree: Any, replace: Callable[[Tensor], Any]) -> Any:
    if isinstance(tree, Tensor):
        return replace(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(_replace(part, replace) for part in tree)
    if isinstance(tree, dict):
        return {name: _replace(part, replace) for name, part in tree.items()}
    return tree


class Program:
    """Operations as one Python function, inputs ↦ outputs, of which nothing is left that is not needed."""

    def __init__(
        self,
        operations: Sequence[Operation],
        constants: dict[Value, Tensor],
        inputs: Sequence[Value],
        outputs: Sequence[Value],
    ) -> None:
        needed, kept = set(outputs), []
        for operation in reversed(operations):
            if needed.intersection(operation.results):
                kept.append(operation)
                needed.update(operation.sources)
        names: dict[str, Any] = {f"v{c.number}": tensor for c, tensor in constants.items() if c in needed}
        lines = [f"def program({', '.join(f'v{value.number}' for value in inputs)}):"]
        for operation in reversed(kept):
            function = f"f{len(names)}"
            function = next((n for n, known in names.items() if known is operation.function), function)
            names[function] = operation.function
            left = ", ".join(f"v{value.number}" for value in operation.results)
            right = [_source(arg, names) for arg in operation.args]
            right += [f"{name}={_source(arg, names)}" for name, arg in operation.kwargs.items()]
            lines.append(f"    {left}{'' if operation.single else ','} = {function}({', '.join(right)})")
        lines.append(f"    return [{', '.join(f'v{value.number}' for value in outputs)}]")
        exec(compile("\n".join(lines), "<traced>", "exec"), names)
        self.run: Callable[..., list[Tensor]] = names["program"]
        self.num_operations = len(kept)


def _source(arg: Any, names: dict[str, Any]) -> str:
    """An argument as Python; what has no literal gets a name."""
    if isinstance(arg, Value):
        return f"v{arg.number}"
    if isinstance(arg, list | tuple):
        return f"[{', '.join(_source(part, names) for part in arg)}]"
    if arg is None or isinstance(arg, bool | int | str):
        return repr(arg)
    name = f"c{len(names)}"
    names[name] = arg
    return name


class Traced:
    """`function`, without the Python that defined it and without a graph of autograd.

    By two programs that are made once, at examples of its arguments: one for its values, one for the gradients
    of those arguments that require them.  Tensors other than the arguments are constants, shapes are those of
    the examples.  It must branch on values by `holds` alone.  First derivatives only.
    """

    def __init__(self, function: Function, examples: Sequence[Tensor]) -> None:
        inputs = [example.detach().clone().requires_grad_(example.requires_grad) for example in examples]
        self._wanted = [i for i, tensor in enumerate(inputs) if tensor.requires_grad]
        sources = [inputs[i] for i in self._wanted]
        recorder = Recorder(inputs)
        with recorder, torch.enable_grad(), _assuming() as assumptions:
            values = function(*inputs)
            weights = [torch.ones_like(value).clone() for value in values]
            given = [recorder._input(weight) for weight in weights]
            grads = torch.autograd.grad(values, sources, weights, allow_unused=True)
            filled = [torch.zeros_like(x) if g is None else g for x, g in zip(sources, grads, strict=True)]
            assumptions += [(failure == 0).all() for failure in recorder.failures]
            holds_all = torch.stack([torch.ones((), dtype=torch.bool), *assumptions]).all()
        self._size = len(values)
        outputs = [recorder.value(value) for value in (*values, holds_all)]
        results = [recorder.value(grad) for grad in filled]
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
