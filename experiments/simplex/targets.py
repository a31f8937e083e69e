"""Dirichlet targets in the coordinates of each simplex transform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Dirichlet, TransformedDistribution

from hmcvi.density import Density
from hmcvi.flows import AdditiveLogRatio, AugmentedSoftmaxDistribution, StickBreaking

F64 = torch.float64
MIXED = (0.1, 1.0, 10.0)
CONCENTRATIONS: dict[str, Callable[[int], Tensor]] = {
    "α = 0.1": lambda size: torch.full((size,), 0.1, dtype=F64),
    "α = 1": lambda size: torch.ones(size, dtype=F64),
    "α = 10": lambda size: torch.full((size,), 10.0, dtype=F64),
    "mixed": lambda size: torch.tensor(MIXED, dtype=F64).repeat(-(-size // len(MIXED)))[:size],
}


@dataclass(frozen=True)
class Coordinates:
    """dim: how many for `size` categories.  log_prob: of the distribution pulled back to them."""

    name: str
    extra: int  # dimensions more than K
    pull_back: Callable[[Dirichlet], TransformedDistribution | AugmentedSoftmaxDistribution]
    to_simplex: Callable[[Tensor], Tensor]

    def density(self, target: Dirichlet) -> Density:
        return Density(self.pull_back(target).log_prob)

    def dim(self, size: int) -> int:
        return size + self.extra


TRANSFORMS = (
    Coordinates(
        "stick-breaking",
        -1,
        lambda target: TransformedDistribution(target, StickBreaking().inv, validate_args=False),
        StickBreaking(),
    ),
    Coordinates(
        "additive log ratio",
        -1,
        lambda target: TransformedDistribution(target, AdditiveLogRatio().inv, validate_args=False),
        AdditiveLogRatio(),
    ),
    Coordinates("augmented softmax", 0, AugmentedSoftmaxDistribution, lambda y: y.softmax(-1)),
)


def dirichlet(concentration: str, size: int) -> Dirichlet:
    return Dirichlet(CONCENTRATIONS[concentration](size), validate_args=False)
