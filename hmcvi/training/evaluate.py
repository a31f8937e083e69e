"""Averages over a test set."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.data import binarize, threshold

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
def average(
    quantity: Callable[[Tensor], Tensor],
    images: Tensor,
    how: str = "dynamic",
    num_draws: int = 1,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Estimate:
    """The mean of quantity(x) [...] over images [N, D] and `num_draws` binarisations of each.

    Draws derive from the seed alone, so that models are compared on the same ones, and the random
    numbers of a training in progress are left untouched.
    """
    device = torch.device(device)
    per_draw = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for _ in range(num_draws):
            batches = (prepare(batch, how).to(device) for batch in images.split(BATCH))
            per_draw.append(torch.cat([quantity(x).double().cpu() for x in batches]))
    return Estimate.of(torch.stack(per_draw).mean(0))
