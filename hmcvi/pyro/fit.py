"""Fits of a posterior with which guides begin, and how much of it can be evaluated at once."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.density import Density, LogProb
from hmcvi.evidence.natural_gradients import DiagonalRoot, FullRoot, ascend
from hmcvi.internal.linalg import LinAlgError
from hmcvi.internal.random import own_random_numbers

MAX_PARTICLES, FRAGILE_PARTICLES = 64, 4
NUMBERS_AT_ONCE = 1 << 16  # below which the cost of an operation hardly depends on its size
FIT_FACTOR = 4  # of the points of a fit, which needs no second derivatives
CHAINS_AT_ONCE = 1 << 14
MAX_STEPS, NUM_STARTS, START_SAMPLES = 500, 4, 64


@torch.no_grad()
def affordable(log_prob: LogProb, dim: int, num_data: int, like: Tensor) -> int:
    """How many points [n, dim] cost little more to evaluate than one: as many as fill `NUMBERS_AT_ONCE`.

    A few if linear algebra fails at random points, because then the points that fail have to be searched for.
    """
    with own_random_numbers():
        points = torch.empty(MAX_PARTICLES, dim).uniform_(-2, 2).to(like)
    try:
        log_prob(points)
    except LinAlgError:
        return FRAGILE_PARTICLES
    return max(1, NUMBERS_AT_ONCE // (dim + num_data))


@torch.no_grad()
def fit_posterior(
    density: Density, first: Tensor, scale: float, full_rank: bool, at_once: int, only_first: bool = False
) -> tuple[Tensor, Tensor] | None:
    """Mean [d] and root, [d, d] or [d], of a normal distribution by natural gradients; None if it fails.

    From several starts with a common random seed: `first` [d], others uniform in (−2, 2) unless only_first.
    scale: the initial standard deviation.  at_once: how many points the density may be asked for at once.
    """
    count = min(NUM_STARTS, max(1, at_once // START_SAMPLES))
    starts = _starts(density, first, 1 if only_first else count, only_first)
    scales = torch.full_like(starts, scale)
    most = at_once // len(starts)
    samples = max(4, most) if most < START_SAMPLES else None
    root: FullRoot | DiagonalRoot = DiagonalRoot(scales)
    if full_rank and most > 4:
        root = FullRoot(torch.diag_embed(scales))
    mean, root, elbo = ascend(density, starts, root, MAX_STEPS if most > 4 else 100, 0, samples)
    best = int(elbo.nan_to_num(-torch.inf).argmax())
    if not (mean[best].isfinite().all() and root[0][best].isfinite().all()):
        return None
    return mean[best], root.matrix()[best] if full_rank else root[0][best]


def _starts(density: Density, first: Tensor, count: int, only_first: bool) -> Tensor:
    """Positions of finite density.  [count, d]"""
    candidates = first[None]
    if not only_first and not (count == 1 and density.finite_log_prob(candidates).isfinite().all()):
        random = torch.empty(10 * NUM_STARTS, len(first)).uniform_(-2, 2).to(first)
        candidates = torch.cat([candidates, random])
    usable = candidates[density.finite_log_prob(candidates).isfinite()]
    if not len(usable):
        where = "init_loc_fn" if len(candidates) == 1 else f"any of {len(candidates)} points"
        raise ValueError(
            "Model specification seems incorrect - cannot find valid initial params: log p is not "
            f"finite at {where}. Check the supports of the observed sites, or say where to begin by "
            "init_loc_fn."
        )
    return usable[:count]
