"""Resampling of weighted particles, and how far a temperature may move before it is needed."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.internal import random

TOLERANCE = 1e-4  # of a step of the temperature, relative
MOST_HALVINGS = 200  # of the interval in which it is searched


def shares(log_weight: Tensor) -> Tensor:
    """w_i / Σ_j w_j over the second dimension; equal where all weights are zero.  [islands, N, *items]"""
    share = log_weight.softmax(1)
    return share.where(~share.isnan(), 1 / log_weight.shape[1])


def systematic(log_weight: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
    """Indices of `count` of N particles, each ⌊count·w⌋ or ⌈count·w⌉ times, w its share of the weights.

    One uniform number for each island and item.  [islands, N, *items] -> [islands, count, *items]
    [Carpenter, Clifford & Fearnhead 1999]
    """
    cumulative = shares(log_weight).movedim(1, -1).cumsum(-1)
    offset = random.uniform(cumulative[..., :1].contiguous(), generator)
    points = (torch.arange(count).to(offset) + offset) / count * cumulative[..., -1:]
    index = torch.searchsorted(cumulative, points, right=True).clamp(max=log_weight.shape[1] - 1)
    return index.movedim(-1, 1)


def take(values: Tensor, index: Tensor) -> Tensor:
    """Entries of values [islands, N, *items, ...] at index [islands, count, *items]."""
    index = index.reshape(index.shape + (1,) * (values.ndim - index.ndim))
    return torch.take_along_dim(values, index, 1)


def conditional_ess(share: Tensor, log_increment: Tensor) -> Tensor:
    """(Σ W v)² / Σ W v², the share of weighted particles that is left effective by new weights v.

    W: [islands, N, *items], summing to one for each item; log v: the same.  -> [*items]
    Between 0 and 1; that of a single particle is 1.  [Zhou, Johansen & Aston 2016]
    """
    top = log_increment.where(share > 0, -torch.inf).flatten(0, 1).amax(0)
    weight = (log_increment - top).where(share > 0, -torch.inf).exp()
    first = (share * weight).flatten(0, 1)
    return first.sum(0).square() / (first * weight.flatten(0, 1)).sum(0)


def next_step(share: Tensor, gap: Tensor, left: Tensor, wanted: float) -> Tensor:
    """The step δ of β, at most `left`, after which the conditional ESS is as `wanted`.  -> [*items]

    share: as in `conditional_ess`; gap: log γ − log q [islands, N, *items]; left: 1 − β [*items].
    Particles outside the target's support are lost whatever δ is, and do not count.  By bisection, as exact
    as TOLERANCE.
    """
    inside = gap > -torch.inf
    share, gap = share.where(inside, 0.0), gap.where(inside, 0.0)
    share = (share / share.flatten(0, 1).sum(0)).nan_to_num(nan=0.0)
    far_enough = ~(conditional_ess(share, left * gap) < wanted)  # or nothing is left to weigh
    low, high = left.where(far_enough, 0.0), left
    for _ in range(MOST_HALVINGS):
        if not ((high - low) > TOLERANCE * high).any():
            break
        middle = (low + high) / 2
        enough = conditional_ess(share, middle * gap) >= wanted
        low, high = middle.where(enough, low), high.where(enough, middle)
    return high
