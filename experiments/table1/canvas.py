"""What the pictures share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

__all__ = ["Axes", "canvas", "contours", "plane", "square"]

LEVELS = 25
SHOWN = 60.0  # nats above the lowest energy


def canvas(rows: int, columns: int, side: float = 4.0) -> tuple[Figure, Any]:
    """A figure without a window, and its axes."""
    figure = Figure(figsize=(side * columns, side * rows), layout="constrained")
    return figure, figure.subplots(rows, columns)


def square(points: Tensor) -> tuple[Tensor, float]:
    """The centre [2] and half side of a square around points [N, 2], with a margin."""
    low, high = points.amin(0), points.amax(0)
    return (low + high) / 2, 0.6 * (high - low).max().item()


def plane(centre: Tensor, half: float, side: int) -> Tensor:
    """A grid over a square, row by row.  [side, side, 2]"""
    ticks = torch.linspace(-half, half, side)
    first, second = torch.meshgrid(ticks, ticks, indexing="xy")
    return centre + torch.stack([first, second], -1)


def contours(axes: Axes, energy: Callable[[Tensor], Tensor], centre: Tensor, half: float) -> None:
    """Contours of an energy [N, 2] -> [N] over a square, lowest dark."""
    grid = plane(centre, half, 80)
    values = energy(grid.reshape(-1, 2)).reshape(grid.shape[:2])
    values = (values - values.min()).clamp(max=SHOWN)
    axes.contourf(*grid.movedim(-1, 0).numpy(), values.numpy(), levels=LEVELS, cmap="Blues_r", alpha=0.8)
    axes.set_aspect("equal")
