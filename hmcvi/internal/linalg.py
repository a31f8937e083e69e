"""Batches of chains in which the linear algebra of some fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

LinAlgError = torch.linalg.LinAlgError


class FailuresAreNan(TorchDispatchMode):
    """Within it matrices without a factor or inverse give NaN, each for itself, where torch would raise."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is torch.ops.aten._linalg_check_errors.default:
            return None
        found = op(*args, **(kwargs or {}))
        if not op.overloadpacket.__name__.endswith("_ex"):
            return found
        good = found[-1] == 0  # [...], of each matrix
        return tuple(_or_nan(part, good) if part.is_floating_point() else part for part in found)


def _or_nan(values: Tensor, good: Tensor) -> Tensor:
    return values.where(good.reshape(*good.shape, *[1] * (values.ndim - good.ndim)), torch.nan)


def succeeding(log_prob: Callable[[Tensor], Tensor], position: Tensor) -> Tensor:
    """Which chains can be evaluated without a LinAlgError.  [..., d] -> [...]

    One bad matrix makes a whole batch raise.  Chains fail whose log γ is NaN where a failed factor is; if
    that is not all that raises, they are found by halves.
    """
    try:
        with FailuresAreNan():
            good = ~log_prob(position).isnan()
        if good.any():
            log_prob(torch.where(good[..., None], position, position[good][0]))
        return good
    except LinAlgError:
        return _by_halves(log_prob, position)


def _by_halves(evaluate: Callable[[Tensor], object], position: Tensor) -> Tensor:
    """The same by halves.

    The shape of the batch is kept, because a density may differ between chains: those that are not in
    question are put where another chain succeeded.
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
