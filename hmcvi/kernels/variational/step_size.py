"""Learned step sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hmcvi.chain import Context
from hmcvi.internal.checks import positive
from hmcvi.networks import mlp, zero_


class StepSize(nn.Module):
    """A step size for all x, forward(context) -> ε > 0: exp of a learned scalar, or of one per dimension."""

    def __init__(self, initial: float, dims: int | None = None) -> None:
        super().__init__()
        shape = () if dims is None else (dims,)
        self.log_step = nn.Parameter(torch.full(shape, _log(initial)))

    def forward(self, context: Context) -> Tensor:
        return self.log_step.exp()


class NetworkStepSize(nn.Module):
    """A step size for each x, ε(x) = exp(network(x)), [..., 1].  [Wolf et al. 2016, §6, future work there]"""

    def __init__(self, initial: float, context_dim: int, hidden: Sequence[int] = (200,)) -> None:
        super().__init__()
        if context_dim < 1:
            raise ValueError(f"step_size='nn' is a network of x: context_dim must be ≥ 1, got {context_dim}")
        self.net = mlp(context_dim, hidden, 1)
        nn.init.constant_(zero_(self.net[-1]).bias, _log(initial))  # type: ignore[arg-type]

    def forward(self, context: Context) -> Tensor:
        return context(self.net).exp()


STEP_SIZES: dict[str, Callable[[float, int, int], nn.Module]] = {
    "global": lambda initial, dim, context_dim: StepSize(initial),
    "dimension": lambda initial, dim, context_dim: StepSize(initial, dim),
    "nn": lambda initial, dim, context_dim: NetworkStepSize(initial, context_dim),
}


def _log(initial: float) -> float:
    return math.log(positive(initial, "the step size"))
