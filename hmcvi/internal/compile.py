"""Functions compiled to one program each, and run as they are where the compiler fails."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, ParamSpec, Self, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

# Inductor inlines element-wise producers up to 50 operations; unrolled trajectories then grow exponentially.
OPTIONS: dict[str, Any] = {"realize_opcount_threshold": 8}

# Torch keeps compiled programs on disk, but not those with loops, unless it is told that these may be kept.
# They may: loops are pure, and their bodies are part of the graph whose hash names a program.
KEPT_ON_DISK = "unsafe_marked_cacheable_functions"
LOOPS = ("torch.ops.higher_order.scan", "torch.ops.higher_order.while_loop")


class Compiled(Generic[P, R]):
    """`function`, compiled at its first call; if that fails, a warning, and `function` itself from then on.

    any_size: whether the first program is for all sizes of its tensors.  Otherwise it is for the first sizes
    only, a little faster, and a second program for all sizes is made when another size occurs.
    loops: whether it has a `scan` or `repeat`; the program is then C++ throughout, to save Python in each
    iteration.
    source, prepare: what is compiled in place of `function` where the compiler needs another form of it, and
    the arguments of that, made of those of `function`.
    """

    def __init__(
        self,
        function: Callable[P, R],
        what: str,
        any_size: bool = False,
        loops: bool = False,
        source: Callable[..., R] | None = None,
        prepare: Callable[P, tuple[Any, ...]] | None = None,
    ) -> None:
        self._function, self._what, self._dynamic = function, what, True if any_size else None
        self._loops, self._source, self._prepare = loops, source or function, prepare
        self._program: Callable[..., R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._program is self._function:
            return self._function(*args, **kwargs)
        try:
            given = args if self._prepare is None else self._prepare(*args, **kwargs)
            if self._program is None:
                return self._compile_and_run(*given, **kwargs)
            with _counting() if self._loops else nullcontext():
                return self._program(*given, **kwargs)
        except Exception as error:  # the compiler's; a mistake in the model is raised again below
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            warnings.warn(f"{self._what} is not compiled: {reason}", RuntimeWarning, stacklevel=2)
            self._program = self._function
            return self._function(*args, **kwargs)

    def _compile_and_run(self, *args: Any, **kwargs: Any) -> R:
        """The first call, without the deprecation warnings of the compiler itself."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            compiler: Any = torch.compile  # its stub does not know isolate_recompiles
            self._program = program = compiler(
                self._source,
                dynamic=self._dynamic,
                options=_options_of_loops() if self._loops else OPTIONS,
                **_isolation(),
            )
            with _counting() if self._loops else nullcontext():
                result: R = program(*args, **kwargs)
                return result


class Programs:
    """Compiled functions, each made once; a copy of their owner has none at first."""

    def __init__(self) -> None:
        self._programs: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], R]) -> R:
        """The program called `key`, made when it is first asked for."""
        if key not in self._programs:
            self._programs[key] = make()
        program: R = self._programs[key]
        return program

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


def _isolation() -> dict[str, bool]:
    """A limit on recompilation that is not shared with other densities, where torch has one."""
    name = "isolate_recompiles"
    return {name: True} if name in inspect.signature(torch.compile).parameters else {}


def _options_of_loops() -> dict[str, Any]:
    """C++ throughout, and kept on disk where torch has an option for it."""
    from torch._inductor import config

    kept = {KEPT_ON_DISK: dict.fromkeys(LOOPS, torch.__version__)} if hasattr(config, KEPT_ON_DISK) else {}
    return OPTIONS | {"cpp_wrapper": True} | kept


def _counting() -> AbstractContextManager[Any]:
    """Let programs have loops, whose counters the compiler would otherwise need to know in advance."""
    from torch._dynamo import config  # takes half a second to import

    patch: Any = config.patch
    return patch(capture_scalar_outputs=True)


def varying(*tensors: torch.Tensor) -> None:
    """Say that the length of the first dimension may be another in the next call."""
    from torch._dynamo import mark_dynamic

    mark: Any = mark_dynamic
    for tensor in tensors:
        mark(tensor, 0)


def scan(
    one: Callable[[list[torch.Tensor], Any], tuple[list[torch.Tensor], Any]],
    parts: list[torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
) -> tuple[list[torch.Tensor], Any]:
    """Iterate parts ← one(parts, input): the last parts, and outputs (tensors, {name: tensor}), stacked."""
    if torch.compiler.is_compiling():
        from torch._higher_order_ops import scan

        return scan(one, parts, inputs)
    outputs = []
    for values in zip(*inputs, strict=True):
        parts, output = one(parts, values)
        outputs.append(output)
    traces, infos = zip(*outputs, strict=True)
    stacked = {name: torch.stack([info[name] for info in infos]) for name in infos[0]}
    return parts, ([torch.stack(values) for values in zip(*traces, strict=True)], stacked)


def repeat(
    one: Callable[[list[torch.Tensor]], list[torch.Tensor]], parts: list[torch.Tensor], count: torch.Tensor
) -> list[torch.Tensor]:
    """Iterate parts ← one(parts), `count` [] times, a number that the program need not know in advance."""
    if torch.compiler.is_compiling():
        from torch._higher_order_ops import while_loop

        _, *parts = while_loop(
            lambda index, *parts: index < count,
            lambda index, *parts: (index + 1, *one(list(parts))),
            (torch.zeros_like(count), *parts),
        )
        return parts
    for _ in range(int(count)):
        parts = one(parts)
    return parts
