"""Covariances of many dimensions: scales, and the few directions that differ most from them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.internal.linalg import geometric_mean

RANK = 32  # directions of the largest variance of draws, and as many of gradients
MOST_DIM, MOST_ROWS = 5000, 512
DRAWS_PER_DIRECTION = 4
DIFFERENT = 2.0  # variances along directions that are kept, by the scales or into them
SHRINKAGE = 1e-5


class LowRank(NamedTuple):
    """Σ = S (I + Q (Λ − I) Qᵀ) S, with S = diag(scale)."""

    scale: Tensor  # [d]
    vectors: Tensor  # Q, orthonormal  [d, r]
    values: Tensor  # Λ > 0  [r]


class Rows:
    """Keeps draws with their gradients, evenly thinned to MOST_ROWS."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def add(self, position: Tensor, grad: Tensor) -> None:
        dim = position.shape[-1]
        self._pairs.append((position.reshape(-1, dim), grad.reshape(-1, dim)))

    def low_rank(self, variance: Tensor) -> LowRank | None:
        """Of draws with these variances [d]; None where no direction differs from the scales."""
        positions, grads = (torch.cat(parts) for parts in zip(*self._pairs, strict=True))
        every = max(1, -(-len(positions) // MOST_ROWS))
        return low_rank(positions[::every].double(), grads[::every].double(), variance.sqrt())


def low_rank(position: Tensor, grad: Tensor, scale: Tensor) -> LowRank | None:
    """Σ with Σ Cov(g) Σ = Cov(z) within the span of the leading directions of draws and of gradients [n, d].

    In units of `scale` all other directions have variance one.  [nutpie: Seyboldt, Carlson & Carpenter 2026]
    """
    rank = min(RANK, len(position) // DRAWS_PER_DIRECTION)
    if rank < 1:
        return None
    draws, scores = (position - position.mean(0)) / scale, (grad - grad.mean(0)) * scale
    try:
        leading = [rows.mT @ torch.linalg.eigh(rows @ rows.mT)[1][:, -rank:] for rows in (draws, scores)]
        basis = torch.linalg.qr(torch.cat(leading, 1)).Q
        inside = ((rows @ basis).mT @ (rows @ basis) / len(rows) for rows in (draws, scores))
        identity = torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
        values, vectors = torch.linalg.eigh(geometric_mean(*(part + SHRINKAGE * identity for part in inside)))
    except torch.linalg.LinAlgError:
        return None
    kept = values.log().abs() > torch.tensor(DIFFERENT).log()
    if not (kept.any() and values.isfinite().all()):
        return None
    return LowRank(scale, basis @ vectors[:, kept], values[kept])
