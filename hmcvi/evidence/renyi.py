"""Normal distributions fitted by Rényi divergences: bases as wide as their target, or wider."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.density import Density, standard_log_prob
from hmcvi.evidence.fits import Fit
from hmcvi.evidence.natural_gradients import DECAY, RATE, DiagonalRoot, FullRoot, Root, fit_normal
from hmcvi.internal.checks import positive, whole
from hmcvi.internal.random import standard_normal
from hmcvi.internal.seeds import generator as seeded
from hmcvi.objectives import power_mean

BOUND_SAMPLES = 4000
WIDER = 2.0  # than the fit of largest ELBO, at first: what q does not reach it cannot learn of


@torch.no_grad()
def fit_renyi(
    density: Density,
    init: Tensor,
    alpha: float = 0.5,
    full_rank: bool = True,
    scale: float = 0.1,
    max_steps: int = 500,
    num_samples: int = 512,
    seed: int = 0,
) -> Fit:
    """Normal distributions q of least Rényi divergence D_α[q ‖ γ/Z], from each start; log ζ = L_α,

        L_α = (1/(1−α)) log E_q[(γ/q)^{1−α}] = log Z − D_α[q ‖ γ/Z].

    alpha: 1 is the ELBO (`fit_normal`); the smaller, the wider q: 0 is KL[γ/Z ‖ q], which matches mean and
        covariance, and below zero L_α is an upper bound, at −1 that of the χ² divergence.
    init, full_rank, scale, max_steps: as in `fit_normal`, whose fit is the start.
    num_samples: draws of q per step.  Their weights (γ/q)^{1−α} have the less effect the larger their
        variance is: this is for few dimensions, and for modes that q reaches.

    A q = N(μ, L Lᵀ) that minimises D_α has the mean and covariance of π ∝ q^α γ^{1−α}.  With z = μ + L n and
    weights ω = (γ/q)^{1−α} of mean 1, which make π of q, steps are those of `fit_normal` with
    r = n (ω − 1)/(1−α), which needs no gradient and vanishes where q is exact.
    [Li & Turner 2016; Dieng et al. 2017; Graham 2018, (C.14)–(C.15)]

    >>> target = Density(lambda z: torch.logaddexp(-0.5 * (z + 2).square(), -0.5 * (z - 2).square()).sum(-1))
    >>> fit = fit_renyi(target, torch.ones(1, dtype=torch.float64), alpha=0.0)
    >>> [round(x, 1) for x in (fit.mean.item(), fit.stddev.item())]  # √(1 + 2²) = 2.2
    [0.0, 2.2]
    """
    if not alpha <= 1:
        raise ValueError(f"alpha must be at most 1, got {alpha}: a fit of larger order is narrower still")
    first = fit_normal(density, init, full_rank, positive(scale, "scale").item(), max_steps, seed)
    if alpha == 1:
        return first
    wider = WIDER * first.root
    root: Root = FullRoot(wider) if full_rank else DiagonalRoot(wider.diagonal(dim1=-2, dim2=-1))
    mean, half = first.mean, -(-whole("num_samples", num_samples, 2) // 2)
    generator = seeded(seed, device=mean.device)
    for step in range(max_steps):
        noise = standard_normal(mean.expand(half, *mean.shape), generator)
        noise = torch.cat([noise, -noise])
        log_weight = _log_weight(density, mean, root, noise)
        weight = len(noise) * ((1 - alpha) * log_weight).softmax(0).nan_to_num(1 / len(noise))
        residual = ((weight - 1) / (1 - alpha))[..., None] * noise
        rate = RATE / (1 + DECAY * max(0, step - max_steps // 2))
        move = rate * residual.mean(0)
        mean = mean + root @ (move / move.norm(dim=-1, keepdim=True).clamp(min=1.0))
        root = root.step(noise, residual, rate)
    noise = standard_normal(mean.expand(BOUND_SAMPLES, *mean.shape), generator)
    return Fit(mean, root.matrix(), power_mean(_log_weight(density, mean, root, noise), 1 - alpha))


def _log_weight(density: Density, mean: Tensor, root: Root, noise: Tensor) -> Tensor:
    """log γ(z) − log q(z) of z = μ + L n.  [samples, ...]"""
    return density.finite_log_prob(mean + root @ noise) - standard_log_prob(noise) + root.log_det()
