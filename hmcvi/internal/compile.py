"""Functions that run as one compiled program, and as they are where the compiler fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, ParamSpec, Self, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

# Inductor inlines element-wise producers up to 50 operations; unrolled trajectories then grow exponentially.
OPTIONS = {"realize_opcount_threshold": 8}


class Compiled(Generic[P, R]):
    """`function`, compiled at its first call; if that fails, a warning and `function` itself ever after.

    any_size: whether the first program is for all sizes of its tensors.  Otherwise it is for the first sizes,
    a little faster, and a second one, made where another size is met, for all.
    loops: whether it has a `scan`; the program is then C++ throughout, as each round would pay for Python.
    """

    def __init__(
        self, function: Callable[P, R], what: str, any_size: bool = False, loops: bool = False
    ) -> None:
        self._function, self._what, self._dynamic = function, what, True if any_size else None
        self._options = OPTIONS | {"cpp_wrapper": True} if loops else OPTIONS
        self._loops = loops
        self._program: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._program is self._function:
            return self._function(*args, **kwargs)
        try:
            if self._program is None:
                return self._compile_and_run(*args, **kwargs)
            with _counting() if self._loops else nullcontext():
                return self._program(*args, **kwargs)
        except Exception as error:  # the compiler's; a mistake in the model is raised again below
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            warnings.warn(f"{self._what} is not compiled: {reason}", RuntimeWarning, stacklevel=2)
            self._program = self._function
            return self._function(*args, **kwargs)

    def _compile_and_run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The first call; what the compiler has to say about its own future is no concern of the user."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            # a limit on recompilation that is not shared with other densities
            compiler: Any = torch.compile  # its stub does not know isolate_recompiles
            self._program = program = compiler(
                self._function, dynamic=self._dynamic, options=self._options, isolate_recompiles=True
            )
            with _counting() if self._loops else nullcontext():
                result: R = program(*args, **kwargs)
                return result


class Programs:
    """Compiled functions, each made once; copies of their owner begin with none."""

    def __init__(self) -> None:
        self._programs: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], R]) -> R:
        """The program called `key`, made if it is asked for the first time."""
        if key not in self._programs:
            self._programs[key] = make()
        program: R = self._programs[key]
        return program

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


def _counting() -> AbstractContextManager[Any]:
    """Within it programs may have loops, whose counters the compiler else wants to know beforehand."""
    from torch._dynamo import config  # takes half a second to import

    patch: Any = config.patch
    return patch(capture_scalar_outputs=True)


def scan(
    one: Callable[[list[torch.Tensor], Any], tuple[list[torch.Tensor], Any]],
    parts: list[torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
) -> tuple[list[torch.Tensor], Any]:
    """The last of parts ← one(parts, input), and what each round gave, (tensors, {name: tensor}), stacked."""
    if torch.compiler.is_compiling():
        from torch._higher_order_ops import scan

        return scan(one, parts, inputs)
    rounds = []
    for values in zip(*inputs, strict=True):
        parts, given = one(parts, values)
        rounds.append(given)
    traces, infos = zip(*rounds, strict=True)
    stacked = {name: torch.stack([info[name] for info in infos]) for name in infos[0]}
    return parts, ([torch.stack(values) for values in zip(*traces, strict=True)], stacked)
