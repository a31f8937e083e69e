"""Bounds and likelihoods on a test set."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.data import binarize, threshold
from hmcvi.models import VAE
from hmcvi.objectives import Bound

BATCH = 500


class Estimate(NamedTuple):
    """A mean over images and its standard error over images, in nats."""

    mean: float
    std_error: float
    num_failed: int  # images left out because their value is not finite

    @classmethod
    def of(cls, per_image: Tensor) -> Estimate:
        """per_image: [N]"""
        finite = per_image[per_image.isfinite()]
        std_error = (
            finite.std(correction=min(1, len(finite) - 1)).item() / len(finite) ** 0.5 if len(finite) else 0.0
        )
        mean = finite.mean().item() if len(finite) else float("-inf")
        return cls(mean, std_error, len(per_image) - len(finite))


def prepare(x: Tensor, how: str) -> Tensor:
    """Images as the model sees them: stochastically binarised, thresholded, or grey."""
    return {"dynamic": binarize, "threshold": threshold, "none": lambda x: x}[how](x)


@torch.no_grad()
def evaluate_bound(
    model: VAE,
    images: Tensor,
    how: str = "dynamic",
    num_draws: int = 1,
    num_samples: int = 1,
    seed: int = 0,
    progress: Callable[[int], object] = lambda n: None,
) -> Estimate:
    """The bound from `num_samples` chains, averaged over `num_draws` binarisations of each image."""
    objective = Bound(alpha=1.0 if num_samples == 1 else 0.0)

    def one_batch(x: Tensor) -> Tensor:
        return model.bound(x, num_samples, objective)

    return _average(one_batch, model, images, how, num_draws, seed, progress)


@torch.no_grad()
def evaluate_nll(
    model: VAE,
    images: Tensor,
    how: str = "dynamic",
    num_draws: int = 1,
    num_samples: int = 1000,
    seed: int = 0,
    progress: Callable[[int], object] = lambda n: None,
) -> Estimate:
    """−log p(x) by importance sampling with S = num_samples."""

    def one_batch(x: Tensor) -> Tensor:
        return model.importance_nll(x, num_samples).nll

    return _average(one_batch, model, images, how, num_draws, seed, progress)


def _average(
    quantity: Callable[[Tensor], Tensor],
    model: VAE,
    images: Tensor,
    how: str,
    num_draws: int,
    seed: int,
    progress: Callable[[int], object],
) -> Estimate:
    """Mean over draws, per image; the same draws for every model, and the training's randomness untouched."""
    device = next(model.parameters()).device
    per_draw = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for _ in range(num_draws):
            draws = []
            for batch in images.split(BATCH):
                draws.append(quantity(prepare(batch, how).to(device)).double().cpu())
                progress(len(batch))
            per_draw.append(torch.cat(draws))
    return Estimate.of(torch.stack(per_draw).mean(0))
