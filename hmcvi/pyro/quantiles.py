"""Quantiles of weighted draws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

QUANTILE_DRAWS, LEAST_DRAWS = 1000, 256


def weighted_quantiles(value: Tensor, weight: Tensor, levels: Sequence[float] | Tensor) -> Tensor:
    """Quantiles of the distribution Σ_i w_i δ(x_i) / Σ_i w_i, between draws by interpolation.

    Draw i of the sorted ones is at level (Σ_{j<i} w_j + w_i / 2) / Σ_j w_j.
    value: [n, *shape], weight: [n] -> [level, *shape]

    >>> weighted_quantiles(torch.tensor([3.0, 1.0, 2.0]), torch.ones(3), [0.5]).tolist()
    [2.0]
    """
    rows = value.flatten(1).mT if value.ndim > 1 else value[None]
    ordered, order = rows.sort(-1)
    share = weight.to(rows)[order]
    at = ((share.cumsum(-1) - share / 2) / share.sum(-1, keepdim=True)).contiguous()
    wanted = torch.as_tensor(levels).to(rows).expand(len(rows), -1).contiguous()
    right = torch.searchsorted(at, wanted).clamp(1, max(1, len(weight) - 1)).clamp(max=len(weight) - 1)
    left = (right - 1).clamp(min=0)
    low, high = at.gather(-1, left), at.gather(-1, right)
    part = ((wanted - low) / (high - low)).nan_to_num(0.0).clamp(0.0, 1.0)
    found = ordered.gather(-1, left).lerp(ordered.gather(-1, right), part)
    return found.mT.reshape(-1, *value.shape[1:])
