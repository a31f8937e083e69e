"""Errors of averages over Markov chains."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class MeanError(NamedTuple):
    """The error of an average over draws and chains, both [*items]."""

    variance: Tensor
    time: Tensor  # number of draws worth one independent draw


def mean_error(values: Tensor) -> MeanError:
    """The variance of the mean of values [draws, chains, *items], chains being independent.

    By the autocorrelations of all chains together, summed over Geyer's initial monotone sequence; chains
    that disagree count as correlated.  [Geyer 1992; Gelman et al. 2013, §11.5]
    """
    draws, chains = values.shape[:2]
    if draws < 4:
        raise ValueError(f"errors of Markov chains need at least 4 draws, got {draws}")
    chain_mean = values.mean(0)
    spectrum = torch.fft.rfft(values - chain_mean, n=2 * draws, dim=0).abs().square()
    autocovariance = torch.fft.irfft(spectrum, n=2 * draws, dim=0)[:draws].mean(1) / (draws - 1)
    within = autocovariance[0]
    between = chain_mean.var(0) if chains > 1 else torch.zeros_like(within)
    total = within * (draws - 1) / draws + between
    correlation = 1 - (within - autocovariance) / total.clamp(min=1e-300)
    pairs = correlation[: draws // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    positive = (pairs > 0).cumprod(0)
    time = 2 * (pairs.cummin(0).values * positive).sum(0) - 1
    time = time.clamp(min=1 / math.log10(draws + 10))  # a smaller sum is noise
    return MeanError(total * time / (draws * chains), time)
