"""Tensor operations recorded as they happen, and the programs that repeat them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


class Untraceable(RuntimeError):
    """A function that is more than a list of tensor operations."""


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
    sources: list[Value]


class Recorder(TorchDispatchMode):
    """Records what is done with tensors: constants are computed once, repetitions and empty steps left out.

    A tensor is known by the memory that it sees, which is kept until the end.

    most: numbers that may be kept.
    """

    def __init__(self, inputs: Sequence[Tensor], most: int | None = None) -> None:
        super().__init__()
        self._most, self._kept = most, 0
        self.operations: list[Operation] = []
        self.constants: dict[Value, Tensor] = {}
        self._tensors: list[Tensor] = []  # by number
        self._numbers: dict[Any, Value] = {}  # by memory
        self._views: dict[int, set[Any]] = {}  # memory of each storage
        self._roots: dict[Value, Value] = {}  # of what is a mere reshaping
        self._known: dict[str, list[Value]] = {}
        self._small: dict[Any, Value] = {}
        self.failures: list[Tensor] = []  # numbers of failures of linear algebra
        self.inputs = [self.new(tensor) for tensor in inputs]

    def new(self, tensor: Tensor) -> Value:
        """A tensor that is given from now on; asked for where nothing is recorded, which this would be."""
        value = Value(len(self._tensors))
        self._place(tensor, value)
        return value

    def _place(self, tensor: Tensor, value: Value) -> None:
        """Let this memory have a value; it is kept, so that no other tensor gets it."""
        key = _memory(tensor)
        self._kept += 0 if key[0] in self._views else tensor.numel()
        if self._most is not None and self._kept > self._most:
            raise Untraceable("its tensors take too much memory")
        self._tensors.append(tensor.detach())
        self._numbers[key] = value
        self._views.setdefault(key[0], set()).add(key)

    def value(self, tensor: Tensor) -> Value:
        """The number of a tensor; of a constant, if it was not computed here."""
        found = self._numbers.get(_memory(tensor))
        if found is not None:
            return found
        if tensor.requires_grad:
            raise Untraceable("it depends on parameters that are not among its arguments")
        return self._constant(tensor)

    def _constant(self, tensor: Tensor) -> Value:
        """A constant; small ones of equal numbers are one."""
        numbers = tensor
        if tensor._is_zerotensor():  # has no memory to read
            numbers = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if tensor.numel() > SMALL:
            value = self.new(tensor)
        else:
            # products with transposed matrices may round differently
            key = (tensor.dtype, tensor.shape, tensor.stride(), numbers.cpu().numpy().tobytes())
            value = self._small.setdefault(key, Value(len(self._tensors)))
            self._place(tensor, value)
        self.constants.setdefault(value, numbers)
        return value

    def _copy_constants(self, tensor: Tensor) -> None:
        """Keep the constants whose memory is about to change, as in `total = zeros(3); total += x`."""
        storage = tensor.untyped_storage().data_ptr()
        for value, numbers in self.constants.items():
            if numbers.untyped_storage().data_ptr() == storage:
                self.constants[value] = numbers.clone()

    def shape(self, value: Value) -> torch.Size:
        return self._tensors[value.number].shape

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do and record an operation."""
        kwargs = kwargs or {}
        if any(isinstance(arg, Tensor) and arg.is_meta for arg in args):
            return func(*args, **kwargs)  # of shapes alone, as torch does with tensors of zeros
        sources: list[Value] = []
        encoded = _replace(args, self._seen(sources)), _replace(kwargs, self._seen(sources))
        is_constant = func in FILLED or all(source in self.constants for source in sources)
        if func is aten._local_scalar_dense.default and not is_constant:
            raise Untraceable("it branches on values")
        if not is_constant and _has_own_shape(func, args):
            raise Untraceable(f"the shape of {func} depends on values")
        mutates = func._schema.is_mutable and torch.Tag.inplace_view not in func.tags
        if mutates and len(self._views[_memory(args[0])[0]]) > 1:
            raise Untraceable(f"{func} changes a tensor that is seen elsewhere")
        if mutates:
            self._copy_constants(args[0])
        result = func(*args, **kwargs)
        outputs = (
            [result]
            if isinstance(result, Tensor)
            else list(result)
            if isinstance(result, tuple | list)
            else []
        )
        if outputs and all(isinstance(output, Tensor) and output.is_meta for output in outputs):
            return result
        if not all(isinstance(output, Tensor) for output in outputs):
            raise Untraceable(f"{func} returns more than tensors")
        if func is aten.pow.Tensor_Scalar and args[1] == 0:
            is_constant = True
        if outputs and all(output._is_zerotensor() for output in outputs):
            is_constant = True
        if is_constant:
            for output in outputs:
                self._constant(output)
        elif func is aten._linalg_check_errors.default:
            self.failures.append(args[0])
        elif not outputs:
            raise Untraceable(f"{func} has effects")
        else:
            call = _functional(func), *encoded
            self._record(call, sources, outputs, isinstance(result, Tensor), mutates)
        return result

    def _seen(self, sources: list[Value]) -> Callable[[Tensor], Value]:
        def see(tensor: Tensor) -> Value:
            sources.append(self.value(tensor))
            return sources[-1]

        return see

    def _record(
        self, call: Any, sources: list[Value], outputs: list[Tensor], single: bool, mutates: bool
    ) -> None:
        if not mutates and all(_memory(output) in self._numbers for output in outputs):
            return  # a view of the same
        func, args, kwargs = call
        same = self._neutral(func, args, kwargs, outputs[0])
        if func in RESHAPES or self._sums_nothing(func, args, kwargs):
            root, shape = self._roots.get(sources[0], sources[0]), outputs[0].shape
            same = root if self.shape(root) == shape else None
            func, args, kwargs, sources = aten.reshape.default, (root, list(shape)), {}, [root]
        key = f"{func} {args} {kwargs}"
        known = self._known.get(key) if same is None else [same]
        if known is not None:
            for output, value in zip(outputs, known, strict=True):
                self._place(output, value)
            return
        self._known[key] = results = [self.new(output) for output in outputs]
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


# not in the body of the class: torch would import its compiler for it, which takes a second
Recorder.__torch_dispatch__ = Recorder.dispatch  # type: ignore[method-assign, assignment]


def _has_own_shape(func: Any, args: Any) -> bool:
    """Whether values, not shapes alone, say how large the result is: where masks select."""
    if func is aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return torch.Tag.dynamic_output_shape in func.tags


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """What of the memory a tensor sees."""
    if tensor._is_zerotensor():  # all of one shape are the same
        return "zeros", tensor.shape, tensor.dtype
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
        last: list[list[Value]] = []  # values that are used for the last time
        for operation in reversed(operations):
            if needed.intersection(operation.results):
                kept.append(operation)
                last.append([v for v in dict.fromkeys(operation.sources) if v not in needed])
                needed.update(operation.sources)
        names: dict[str, Any] = {_name(value): constants[value] for value in constants if value in needed}
        functions = {function: f"f{i}" for i, function in enumerate({op.function: None for op in kept})}
        lines = [f"def program({', '.join(map(_name, inputs))}):"]
        for operation, used in zip(reversed(kept), reversed(last), strict=True):
            left = ", ".join(map(_name, operation.results)) + ("" if operation.single else ",")
            right = [_source(arg, names) for arg in operation.args]
            right += [f"{name}={_source(arg, names)}" for name, arg in operation.kwargs.items()]
            lines.append(f"    {left} = {functions[operation.function]}({', '.join(right)})")
            lines += [f"    {_name(value)} = None" for value in used if value not in constants]
        lines.append(f"    return [{', '.join(map(_name, outputs))}]")
        # the functions behind torch's wrappers, which cost as much as a small operation
        names |= {name: function._op for function, name in functions.items()}
        exec(compile("\n".join(lines), "<traced>", "exec"), names)
        self.run: Callable[..., list[Tensor]] = names["program"]
        self.num_operations = len(kept)


def _name(value: Value) -> str:
    return f"v{value.number}"


def _source(arg: Any, names: dict[str, Any]) -> str:
    """An argument as Python; what has no literal gets a name."""
    if isinstance(arg, Value):
        return _name(arg)
    if isinstance(arg, list | tuple):
        return f"[{', '.join(_source(part, names) for part in arg)}]"
    if arg is None or isinstance(arg, bool | int | str):
        return repr(arg)
    name = f"c{len(names)}"
    names[name] = arg
    return name
