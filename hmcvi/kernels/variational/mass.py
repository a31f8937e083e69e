"""Learned mass matrices: models that give a metric for the data x."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from hmcvi.chain import Context
from hmcvi.dynamics.metrics import CholeskyMetric, DiagonalMetric, IdentityMetric, LowRankMetric, Metric
from hmcvi.networks import mlp, zero_


class Mass(nn.Module):
    """A model of the mass matrix, forward(context) -> Metric; the identity before training."""

    def forward(self, context: Context) -> Metric:
        raise NotImplementedError


class IdentityMass(Mass):
    """M = I."""

    def forward(self, context: Context) -> Metric:
        return IdentityMetric()


class GlobalMass(Mass):
    """One learned diagonal for all x: M = diag(exp(2 s))."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(dim))

    def forward(self, context: Context) -> Metric:
        return DiagonalMetric(self.log_scale)


class NetworkMass(Mass):
    """A diagonal for each x: log M = network(x), one hidden layer of 200 ReLU.  [Wolf et al. 2016, §5.3]"""

    def __init__(self, dim: int, context_dim: int, hidden: Sequence[int] = (200,)) -> None:
        super().__init__()
        if context_dim < 1:
            raise ValueError(
                f"mass='nn' is a network of x: context_dim must be at least 1, got {context_dim}"
            )
        self.net = mlp(context_dim, hidden, dim)
        zero_(self.net[-1])  # type: ignore[arg-type]

    def forward(self, context: Context) -> Metric:
        return DiagonalMetric(0.5 * context(self.net))


class LowRankMass(Mass):
    """One learned diagonal plus low rank for all x."""

    def __init__(self, dim: int, rank: int) -> None:
        super().__init__()
        if not 1 <= rank <= dim:
            raise ValueError(f"the rank of the mass matrix must be between 1 and {dim}, got {rank}")
        self.log_scale = nn.Parameter(torch.zeros(dim))
        # V = 0 is a saddle point of V Vᵀ: training begins near it
        self.factor = nn.Parameter(0.01 * torch.randn(dim, rank))

    def forward(self, context: Context) -> Metric:
        return LowRankMetric(self.log_scale, self.factor)


class CholeskyMass(Mass):
    """One learned full matrix for all x, by its Cholesky factor with exp on the diagonal."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(dim))
        self.off_diagonal = nn.Parameter(torch.zeros(dim, dim))

    def forward(self, context: Context) -> Metric:
        return CholeskyMetric(self.off_diagonal.tril(-1) + self.log_scale.exp().diag())


MASSES: dict[str, Callable[[int, int], Mass]] = {
    "identity": lambda dim, context_dim: IdentityMass(),
    "global": lambda dim, context_dim: GlobalMass(dim),
    "nn": lambda dim, context_dim: NetworkMass(dim, context_dim),
    "low-rank": lambda dim, context_dim: LowRankMass(dim, rank=max(1, min(dim, round(dim**0.5)))),
    "full": lambda dim, context_dim: CholeskyMass(dim),
}
