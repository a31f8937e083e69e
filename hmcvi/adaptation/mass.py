"""Mass: covariances of the draws of warm-up, window by window."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.adaptation.low_rank import LowRank
from hmcvi.dynamics.metrics import CholeskyMetric, DiagonalMetric, Metric, SpectralMetric


class Moments:
    """Mean and covariance of everything added, batch by batch, without keeping it.  [Chan et al. 1979]

    Batches [..., d] are pooled over their leading dimensions.  dense: the whole matrix, else its diagonal.
    """

    def __init__(self, dense: bool = False) -> None:
        self.dense, self.count = dense, 0
        self._mean: Tensor | float = 0.0
        self._scatter: Tensor | float = 0.0

    def add(self, batch: Tensor) -> None:
        rows = batch.reshape(-1, batch.shape[-1]).double()
        mean = rows.mean(0)
        total = self.count + len(rows)
        gap, share = mean - self._mean, len(rows) / total
        between = self._square(gap[None]) * self.count * share
        self._scatter = self._scatter + self._square(rows - mean) + between
        self._mean, self.count = self._mean + gap * share, total

    def _square(self, rows: Tensor) -> Tensor:
        return rows.mT @ rows if self.dense else rows.square().sum(0)

    def covariance(self) -> Tensor:
        """[d, d] or its diagonal [d], shrunk a little towards 1e-3 as in Stan."""
        sample, trust = self.sample_covariance(), self.count / (self.count + 5)
        floor = torch.full_like(sample[0] if self.dense else sample, 1e-3 * (1 - trust))
        return trust * sample + (torch.diag(floor) if self.dense else floor)

    def sample_covariance(self) -> Tensor:
        """[d, d] or its diagonal [d], as it is."""
        assert isinstance(self._scatter, Tensor) and self.count > 1
        return self._scatter / (self.count - 1)


def windows(num_warmup: int) -> list[tuple[int, int]]:
    """Windows [begin, end) of transitions, after each of which the mass is estimated from its draws.

    Each is twice as long as the one before; before the first and after the last only the step size is tuned.
    Fewer than 20 transitions are too few for the mass.  [Stan reference manual, HMC algorithm parameters; in
    short warm-ups the end is longer here, a third of them: the step size must settle after the mass changed]
    """
    if num_warmup >= 150:
        begin, size, last = 75, 25, num_warmup - 50
    else:
        begin, last = int(0.15 * num_warmup), num_warmup - num_warmup // 3
        size = last - begin if num_warmup >= 20 else 0
    found = []
    while size > 0 and begin + size <= last:
        # a rest too short for another window belongs to the last one
        end = last if begin + 3 * size > last else begin + size
        found.append((begin, end))
        begin, size = end, 2 * size
    return found


def first_window(num_warmup: int) -> int:
    """The number of transitions before the first window."""
    found = windows(num_warmup)
    return found[0][0] if found else num_warmup // 3


def inverse_metric(covariance: Tensor | LowRank, like: Tensor) -> Metric:
    """The mass M = Σ⁻¹ that makes all scales one, from Σ [d, d] or its diagonal [d], in the dtype of `like`.

    With Σ = U Uᵀ, U upper triangular, the lower triangular root of M is U⁻ᵀ.
    """
    if isinstance(covariance, LowRank):
        log_values = -0.5 * covariance.values.log()
        parts = -covariance.scale.log(), covariance.vectors, log_values
        return SpectralMetric(*(part.to(like) for part in parts))
    if covariance.ndim == 1:
        return DiagonalMetric((-0.5 * covariance.log()).to(like))
    upper = torch.linalg.cholesky(covariance.flip(0, 1)).flip(0, 1)
    identity = torch.eye(len(upper), dtype=upper.dtype, device=upper.device)
    return CholeskyMetric(torch.linalg.solve_triangular(upper, identity, upper=True).mT.contiguous().to(like))
