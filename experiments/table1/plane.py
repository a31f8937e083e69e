"""Energies over the plane of two latents."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.axes import Axes
from torch import Tensor

LEVELS = 25
SHOWN = 60.0  # nats above the lowest energy


def square(points: Tensor) -> tuple[Tensor, float]:
    """The centre [2] and half side of a square around points [N, 2], with a margin."""
    low, high = points.amin(0), points.amax(0)
    return (low + high) / 2, 0.6 * (high - low).max().item()


def grid(centre: Tensor, half: float, side: int) -> Tensor:
    """Points of a square, row by row.  [side, side, 2]"""
    ticks = torch.linspace(-half, half, side)
    first, second = torch.meshgrid(ticks, ticks, indexing="xy")
    return centre + torch.stack([first, second], -1)


def contours(axes: Axes, energy: Callable[[Tensor], Tensor], centre: Tensor, half: float) -> None:
    """Draw an energy [N, 2] -> [N] over a square, lowest dark."""
    points = grid(centre, half, 80)
    values = energy(points.reshape(-1, 2)).reshape(points.shape[:2])
    values = (values - values.min()).clamp(max=SHOWN)
    axes.contourf(*points.movedim(-1, 0).numpy(), values.numpy(), levels=LEVELS, cmap="Blues_r", alpha=0.8)
    axes.set_aspect("equal")
