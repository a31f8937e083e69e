"""The tail of importance weights: whether their mean and its error can be trusted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_PARETO_K = 0.7  # above it averages over weights are unreliable, however many there are
LEAST = 5  # weights in a tail, to say something about it
PRIOR_COUNT, PRIOR_K = 10, 0.5  # the prior of k: so many weights at this value
PRIOR_SPREAD = 3  # of 1/θ, in quartiles of the tail


@torch.no_grad()
def pareto_k(log_weight: Tensor) -> Tensor:
    """The shape k̂ of a generalized Pareto distribution fitted to the largest weights.  [N, ...] -> [...]

    Weights have finite moments of order below 1/k: a variance if k < ½, a mean if k < 1.  Averages over them
    are usable up to 0.7; beyond, neither they nor their errors can be trusted.

    The tail is the min(N/5, 3√N) largest weights.  −inf if these are all equal, inf where all but a handful
    vanish beside the largest, NaN where the tail is unknown: for fewer than 21 weights, or if all are zero.
    [Vehtari, Simpson, Gelman, Yao & Gabry 2024]

    >>> u = torch.rand(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> bool((pareto_k(-0.6 * u.log()) - 0.6).abs() < 0.3)  # w = u^{−0.6}
    True
    """
    log_weight = log_weight.double()
    log_weight = log_weight.where(~log_weight.isnan(), -torch.inf)
    count = len(log_weight)
    size = math.ceil(min(count / 5, 3 * count**0.5))
    if size < LEAST:
        return torch.full_like(log_weight.sum(0), torch.nan)
    largest = log_weight.topk(size + 1, 0).values.flip(0)
    weight = (largest - largest[-1]).exp()  # NaN where all are zero
    tiny = torch.finfo(weight.dtype).tiny
    excess = weight[1:] - weight[0].clamp(min=tiny)
    enough = (excess > 0).sum(0) >= LEAST
    ramp = torch.arange(1, size + 1).to(excess).view(-1, *[1] * (excess.ndim - 1))
    shape = _fitted_shape(torch.where(enough, excess, ramp))
    unknown = torch.full_like(shape, torch.nan).where(weight[0] >= tiny, torch.inf)
    unknown = unknown.where(weight[0] < 1, -torch.inf).where(~weight[0].isnan(), torch.nan)
    return shape.where(enough, unknown)


def _fitted_shape(excess: Tensor) -> Tensor:
    """k of the density (1 + k x/σ)^{−1/k−1} / σ, from increasing x > 0; smaller ones are left out.

    With θ = −k/σ, k(θ) = mean log(1 − θx) is the best k for θ, of likelihood n (log(−θ/k) − k − 1).  θ is the
    posterior mean over a grid of quantiles of its prior.  [n, ...] -> [...]  [Zhang & Stephens 2009]
    """
    inside = excess > 0
    count = inside.sum(0)
    quartile = len(excess) - count + (count / 4 + 0.5).long() - 1
    scale = PRIOR_SPREAD * excess.gather(0, quartile[None])[0]

    def best_k(theta: Tensor) -> Tensor:
        return torch.log1p(-theta * excess).where(inside, 0.0).sum(0) / count

    size = 30 + int(len(excess) ** 0.5)
    quantiles = 1 - (size / (torch.arange(size, dtype=excess.dtype) + 0.5)).sqrt()
    thetas = [1 / excess[-1] + quantile / scale for quantile in quantiles]
    shapes = [best_k(theta) for theta in thetas]  # one at a time: all at once take much memory
    theta, k = torch.stack(thetas), torch.stack(shapes)
    likelihood = count * ((-theta / k).log() - k - 1)
    k = best_k((likelihood.softmax(0) * theta).sum(0))
    return (count * k + PRIOR_COUNT * PRIOR_K) / (count + PRIOR_COUNT)
