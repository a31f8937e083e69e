"""What the pictures of kernels share: a density that remembers where it was asked, and colours."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.axes import Axes
from torch import Tensor

from hmcvi.density import Density

# told apart by colour-blind readers  [Okabe & Ito 2008]
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY, DARK = "#9A9A9A", "#222222"

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


def contours(
    axes: Axes, log_prob: LogProb, x: tuple[float, float], y: tuple[float, float], below: tuple[float, ...]
) -> None:
    """Lines where log γ lies `below` its largest value, the outermost first."""
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


def plain(axes: Axes, title: str) -> None:
    """A panel whose geometry matters: equal units, its title on the left."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_aspect("equal", adjustable="box")
    axes.tick_params(labelsize=8)
