"""Batches of chains in which the linear algebra of some fails."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LinAlgError = torch.linalg.LinAlgError


def succeeding(evaluate: Callable[[Tensor], object], position: Tensor) -> Tensor:
    """Which chains can be evaluated without a LinAlgError, by halves.  [..., d] -> [...]

    One bad matrix makes a whole batch raise.  The shape of the batch is kept, because a density may differ
    between chains: those that are not in question are put where another chain succeeded.
    """
    chains = position.detach().reshape(-1, position.shape[-1])

    def succeeds(rows: Tensor) -> bool:
        try:
            evaluate(rows.reshape(position.shape))
        except LinAlgError:
            return False
        return True

    if succeeds(chains):
        return torch.ones_like(position[..., 0], dtype=torch.bool)
    good = torch.zeros(len(chains), dtype=torch.bool, device=position.device)
    spare = next((row for row in chains if succeeds(row.expand_as(chains))), None)
    parts = [] if spare is None else list(torch.arange(len(chains), device=position.device).chunk(2))
    while parts:
        part = parts.pop()
        trial = spare.repeat(len(chains), 1)  # type: ignore[union-attr]
        trial[part] = chains[part]
        if succeeds(trial):
            good[part] = True
        elif len(part) > 1:
            parts += part.chunk(2)
    return good.reshape(position.shape[:-1])


def geometric_mean(covariance: Tensor, precision: Tensor) -> Tensor:
    """The symmetric Σ with Σ P Σ = C: with P = L Lᵀ, Σ = L⁻ᵀ (Lᵀ C L)^½ L⁻¹.  [d, d]"""
    root = torch.linalg.cholesky(precision)
    values, vectors = torch.linalg.eigh(root.mT @ covariance @ root)
    half = vectors * values.clamp(min=torch.finfo(values.dtype).tiny).sqrt() @ vectors.mT
    left = torch.linalg.solve_triangular(root.mT, half, upper=True)
    solved = torch.linalg.solve_triangular(root.mT, left.mT, upper=True)
    return (solved + solved.mT) / 2
