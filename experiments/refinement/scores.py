"""Bounds and likelihoods of test images, and what is gained, image by image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmcvi.data import binarize
from hmcvi.models import VAE
from hmcvi.training.likelihood import annealed_nll
from hmcvi.training.scores import Estimate

BATCH, ANNEALED = 500, 100  # images at once
SEED = 2


def binarisations(images: Tensor, draws: int) -> Tensor:
    """The same for all models.  [N, D] -> [draws, N, D]"""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return torch.stack([binarize(images) for _ in range(draws)])


@torch.no_grad()
def bounds(model: VAE, x: Tensor, num_samples: int = 1) -> Tensor:
    """The bound on log p(x) of each image, averaged over its binarisations.  [draws, N, D] -> [N]"""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        each = [torch.cat([model.bound(batch, num_samples) for batch in draw.split(BATCH)]) for draw in x]
    return torch.stack(each).double().mean(0)


def log_likelihoods(model: VAE, x: Tensor, num_chains: int = 12, num_temperatures: int = 300) -> Tensor:
    """log p(x) of each image by annealed importance sampling from the encoder's posterior.  [N, D] -> [N]"""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        batches = x.split(ANNEALED)
        return -torch.cat(
            [annealed_nll(model, b, num_chains, num_temperatures).nll for b in batches]
        ).double()


def gain(new: Tensor, old: Tensor, name: str) -> dict[str, Any]:
    """Mean and standard error of the differences of two scores of each image [N]."""
    difference = Estimate.of(new - old)
    return {name: difference.mean, f"{name}_se": difference.std_error}


def figures(values: Tensor, name: str) -> dict[str, Any]:
    """Mean of scores [N] and its standard error over images."""
    estimate = Estimate.of(values)
    return {name: estimate.mean, f"{name}_se": estimate.std_error, f"{name}_failed": estimate.num_failed}
