"""Convergence of chains: R-hat and effective sample sizes of many variables at once, in double precision.

Values are [chains, draws, ...] throughout, results [...].
"""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.sampling.autocorrelation import mean_error

TAILS = (0.05, 0.95)


def rhat(values: Tensor) -> Tensor:
    """Rank-normalised split R-hat, the larger one of location and scale; NaN for constants.

    [Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021]
    """
    halves = split(values.double())
    folded = (halves - quantile(halves.flatten(0, 1), 0.5)).abs()
    location, scale = (_plain_rhat(normal_scores(part)) for part in (halves, folded))
    return torch.maximum(location, scale)


def nested_rhat(values: Tensor, num_groups: int) -> Tensor:
    """√(1 + B/W) of superchains: groups of chains that lie next to each other and began at the same place.

    B is the variance of the means of groups; W, the mean variance within groups, between and along chains.
    It needs no long chains, a single draw of each will do: that what groups had in common is forgotten shows
    in the averages over them.  [Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari & Gelman 2024]
    """
    chains, draws = values.shape[:2]
    if chains % num_groups or num_groups < 2:
        raise ValueError(f"{chains} chains cannot be divided into {num_groups} groups of equal size")
    grouped = values.double().unflatten(0, (num_groups, -1))  # [K, M, N, ...]
    means = grouped.mean(2)
    between = means.mean(1).var(0)
    within = grouped.var(2).mean((0, 1)) if draws > 1 else torch.zeros_like(between)
    if chains > num_groups:
        within = within + means.var(1).mean(0)
    return (1 + between / within).sqrt()


def bulk_ess(values: Tensor) -> Tensor:
    """The effective number of draws for the centre of a distribution.  [Vehtari et al. 2021]"""
    return _ess(normal_scores(split(values.double())))


def tail_ess(values: Tensor) -> Tensor:
    """The effective number of draws for the 5 % and 95 % quantiles, the smaller.  [Vehtari et al. 2021]"""
    values = values.double()
    flat = values.flatten(0, 1)
    low, high = (_ess(split((values <= quantile(flat, share)).double())) for share in TAILS)
    return torch.minimum(low, high)


def bfmi(energy: Tensor) -> Tensor:
    """E(ΔE²) / Var(E) along each chain, NaN where energies are constant.  [chains, draws] -> [chains]

    [Betancourt 2016]
    """
    energy = energy.double()
    return energy.diff(dim=1).square().mean(1) / energy.var(1)


def split(values: Tensor) -> Tensor:
    """Both halves of every chain, as chains of their own; an odd draw in the middle is left out."""
    half = values.shape[1] // 2
    return torch.cat([values[:, :half], values[:, values.shape[1] - half :]])


def normal_scores(values: Tensor) -> Tensor:
    """Φ⁻¹((r − 3/8) / (S + 1/4)), r the rank of a value among all S; equal values share their mean rank."""
    rows = values.flatten(0, 1).movedim(0, -1)  # [..., S]
    ordered, order = rows.sort(-1)
    place = torch.arange(rows.shape[-1], device=rows.device).expand_as(order)
    differs = ordered[..., 1:] != ordered[..., :-1]
    ends = torch.ones_like(differs[..., :1])
    first = place.where(torch.cat([ends, differs], -1), 0).cummax(-1).values
    last = place.where(torch.cat([differs, ends], -1), place[..., -1:])
    last = last.flip(-1).cummin(-1).values.flip(-1)
    rank = torch.empty_like(rows).scatter_(-1, order, (first + last + 2).to(rows) / 2)
    score = torch.special.ndtri((rank - 0.375) / (rows.shape[-1] + 0.25))
    return score.movedim(-1, 0).unflatten(0, values.shape[:2])


def quantile(values: Tensor, share: float) -> Tensor:
    """Over the first dimension, linear between neighbours; torch.quantile refuses large tensors.

    [S, ...] -> [...]
    """
    ordered, place = values.sort(0).values, share * (len(values) - 1)
    below = int(place)
    return torch.lerp(ordered[below], ordered[min(below + 1, len(values) - 1)], place - below)


def _plain_rhat(values: Tensor) -> Tensor:
    draws = values.shape[1]
    within, between = values.var(1).mean(0), values.mean(1).var(0)
    return ((draws - 1) / draws + between / within).sqrt()


def _ess(values: Tensor) -> Tensor:
    """That of the mean; of constants, all of them."""
    count = values.shape[0] * values.shape[1]
    constant = values.flatten(0, 1).amax(0) == values.flatten(0, 1).amin(0)
    return (count / mean_error(values.transpose(0, 1)).time).where(~constant, count)
