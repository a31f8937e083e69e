"""Densities of long runs: evaluated without the Python of log_prob and without a graph of autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hmcvi.density import Density
from hmcvi.dynamics.forces import ForcedDensity
from hmcvi.internal.recorded import Replayed, holds
from hmcvi.sampling.rows import ByRows

MOST_NUMBERS = 2**24  # of all tensors of an evaluation; with larger ones, Python is a small part of the time


class ReplayedDensity(Density):
    """The same density, log γ and ∇ log γ at positions of one shape by a recorded list of tensor operations.

    The operations are those that torch makes for log_prob and its gradient, so that values are the same to
    the last bit.  Where validation of arguments or linear algebra fails, log_prob itself is asked.
    """

    def __init__(self, target: Density, program: Replayed, example: Tensor) -> None:
        super().__init__(target._log_prob, base=target.base, dim=target.dim)
        self.layout, self.target = target.layout, target
        self._program, self._kind = program, (example.shape, example.dtype)

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        if (position.shape, position.dtype) == self._kind and not torch.is_grad_enabled():
            found = self._program(position)
            if found is not None:
                value, grad = found
                return value, grad
        return self.target.value_and_grad(position)


@torch.no_grad()
def replayed(density: Density, position: Tensor) -> Density:
    """The density recorded at `position` [chains, d]; itself where it is more than tensor operations.

    It may close over tensors, as long as these stay as they are.
    """
    if position.device.type != "cpu" or isinstance(density, ForcedDensity | ByRows):
        return density
    elsewhere = torch.lerp(position, position.roll(1, 0), 0.1) * 0.999 + 1e-3
    try:
        with _AssumedValidation():
            program = Replayed(density.value_and_grad, [position], MOST_NUMBERS)
        expected, found = density.value_and_grad(elsewhere), program(elsewhere)
    except Exception:  # whatever it is, `density` meets it by itself
        return density
    same = found is not None and all(map(_equal, expected, found))
    return ReplayedDensity(density, program, position) if same else density


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


class _AssumedValidation(TorchFunctionMode):
    """Within it, arguments of torch's distributions pass their validation, on which the record depends."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch._is_all_true:
            return holds(args[0])
        return function(*args, **(kwargs or {}))
