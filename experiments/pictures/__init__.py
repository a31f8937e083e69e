"""Kernels in pictures.  Shared: a density that records where it was evaluated, contours, panels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.axes import Axes
from torch import Tensor

from experiments.report import GREY, title
from hmcvi.density import Density

CORRELATION = 0.97
LogProb = Callable[[Tensor], Tensor]


class Recording:
    """A density and the points it was evaluated at, in order."""

    def __init__(self, log_prob: LogProb) -> None:
        self._log_prob = log_prob
        self.points: list[Tensor] = []
        self.density = Density(self._record)

    def _record(self, position: Tensor) -> Tensor:
        self.points.append(position.detach().clone())
        return self._log_prob(position)


def narrow(position: Tensor) -> Tensor:
    """N(0, Σ) with unit variances and a large correlation.  [..., 2] -> [...]"""
    x, y = position.unbind(-1)
    return -0.5 * (x.square() - 2 * CORRELATION * x * y + y.square()) / (1 - CORRELATION**2)


def contours(
    axes: Axes, log_prob: LogProb, x: tuple[float, float], y: tuple[float, float], below: tuple[float, ...]
) -> None:
    """Draw lines where log γ lies `below` its largest value, the outermost first."""
    grid_x, grid_y = torch.meshgrid(
        torch.linspace(*x, 300, dtype=torch.float64),
        torch.linspace(*y, 300, dtype=torch.float64),
        indexing="xy",
    )
    values = log_prob(torch.stack([grid_x, grid_y], -1))
    levels = [float(values.max()) - drop for drop in sorted(below, reverse=True)]
    axes.contour(
        grid_x.numpy(),
        grid_y.numpy(),
        values.numpy(),
        levels=levels,
        colors=GREY,
        linewidths=0.7,
        zorder=1,
        linestyles="solid",
    )


def plain(axes: Axes, text: str) -> None:
    """Set up a panel whose geometry matters: equal units, its title on the left."""
    title(axes, text)
    axes.set_aspect("equal", adjustable="box")
    axes.tick_params(labelsize=8)
