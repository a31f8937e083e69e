"""Running means and covariances of batches."""

from __future__ import annotations

import torch
from torch import Tensor


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
        assert isinstance(self._scatter, Tensor) and self.count > 1
        trust = self.count / (self.count + 5)
        floor = torch.full_like(self._scatter[0] if self.dense else self._scatter, 1e-3 * (1 - trust))
        return trust * self._scatter / (self.count - 1) + (torch.diag(floor) if self.dense else floor)
