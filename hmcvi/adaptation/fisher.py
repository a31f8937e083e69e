"""Mass from draws and their gradients: the normal distribution whose scores are nearest to those seen.

For log γ with scores g = ∇log γ(z) the covariance Σ of N(μ, Σ) that minimises the Fisher divergence
E‖g + Σ⁻¹(z − μ)‖², measured in Σ itself, solves

    Σ Cov(g) Σ = Cov(z).

On a normal target it is exact after d + 1 draws, wherever they come from: chains that are still far away
show it as well as those that have arrived.  [Seyboldt, Carlson & Carpenter 2026, nutpie]
"""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.adaptation import low_rank
from hmcvi.adaptation.low_rank import LowRank, Rows
from hmcvi.adaptation.mass import Moments
from hmcvi.internal.linalg import geometric_mean

MAX_DENSE = 150  # dimensions of a full matrix
DRAWS_PER_DIMENSION = 4  # for a full matrix
LEAST = 8  # draws for a diagonal one
SHRINKAGE = 1e-3, 1e-9  # of correlations towards none, with few draws and with enough


class FisherMoments:
    """Second moments of positions and gradients [..., d], pooled over their leading dimensions.

    dense: whether to estimate a full matrix; None: where there are draws enough for its dimension, and in
        more than 150 dimensions a diagonal and what differs from it most.
    """

    def __init__(self, dense: bool | None = None) -> None:
        self._dense = dense
        self._position: Moments | None = None
        self._grad: Moments | None = None
        self._rows: Rows | None = None

    @property
    def count(self) -> int:
        return 0 if self._position is None else self._position.count

    def add(self, position: Tensor, grad: Tensor) -> None:
        if self._position is None or self._grad is None:
            dense = self._dense
            if dense is None:  # of half precision there is no linear algebra
                dense = position.shape[-1] <= MAX_DENSE and position.itemsize >= 4
            self._position, self._grad = Moments(dense), Moments(dense)
            many = MAX_DENSE < position.shape[-1] <= low_rank.MOST_DIM
            self._rows = Rows() if self._dense is None and many and position.itemsize >= 4 else None
        if self._rows is not None:
            self._rows.add(position, grad)
        self._position.add(position)
        self._grad.add(grad)

    def covariance(self) -> Tensor | LowRank | None:
        """Σ [d, d], its diagonal [d], or scales and a few directions.

        None where there are too few draws, or they have not moved.
        """
        if self.count < LEAST:
            return None
        assert self._position is not None and self._grad is not None
        positions, grads = self._position.sample_covariance(), self._grad.sample_covariance()
        if not (positions.isfinite().all() and grads.isfinite().all()):
            return None
        if not self._position.dense:
            scales = _diagonal(positions, grads)
            found = None if self._rows is None or scales is None else self._rows.low_rank(scales)
            return scales if found is None else found
        scales = _diagonal(positions.diagonal(), grads.diagonal())
        enough = self.count >= DRAWS_PER_DIMENSION * len(positions)
        if scales is None or not (enough or self._dense):
            return scales
        root, shrinkage = scales.sqrt(), SHRINKAGE[enough]
        pair = (
            _shrunk(matrix, shrinkage)
            for matrix in (positions / root / root[:, None], grads * root * root[:, None])
        )
        try:
            solved = geometric_mean(*pair)
        except torch.linalg.LinAlgError:
            return scales
        full = root[:, None] * solved * root
        return full if int(torch.linalg.cholesky_ex(full).info) == 0 and full.isfinite().all() else scales


def robust_scales(position: Tensor, grad: Tensor) -> Tensor | None:
    """Diagonal of Σ from chains anywhere, by medians over them: MAD(z) / MAD(g).  [chains, d] -> [d]"""
    if len(position) < LEAST:
        return None
    spread, stiffness = _absolute_deviation(position.double()), _absolute_deviation(grad.double())
    return (spread / stiffness) if _positive(spread, stiffness) else None


def _absolute_deviation(rows: Tensor) -> Tensor:
    """The median of |x − median x| over rows.  [n, d] -> [d]"""
    return (rows - rows.median(0).values).abs().median(0).values


def _diagonal(positions: Tensor, grads: Tensor) -> Tensor | None:
    return (positions / grads).sqrt() if _positive(positions, grads) else None


def _positive(*values: Tensor) -> bool:
    """Whether all are, and none so large or small that a quotient could not be used."""
    return all(bool(((value > 1e-100) & (value < 1e100)).all()) for value in values)


def _shrunk(matrix: Tensor, share: float) -> Tensor:
    return matrix + share * torch.diag(matrix.diagonal())
