"""The latent space of a trained model (figures 5–7 of the paper)."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.report import canvas
from experiments.table1.plane import contours, grid
from hmcvi.data import binarize, threshold
from hmcvi.models import VAE

SHOWN = 10_000  # images, by their refined latents
BATCH = 1000


def binarisations(images: Tensor, shape: tuple[int, int]) -> Figure:
    """Draw images [N, D] grey, thresholded and stochastically binarised."""
    figure, rows = canvas(len(images), 3, (6, 2 * len(images)))
    for axes, image in zip(rows, images, strict=True):
        views = {"grey": image, "threshold": threshold(image), "stochastic": binarize(image)}
        for panel, (name, view) in zip(axes, views.items(), strict=True):
            panel.imshow(view.reshape(shape).numpy(), cmap="gray_r", vmin=0, vmax=1)
            panel.set(xticks=[], yticks=[], title=name if panel in rows[0] else "")
    return figure


@torch.no_grad()
def energy_surface(
    model: VAE, x: Tensor, shape: tuple[int, int], side: int = 12, half: float = 3.0
) -> Figure:
    """Draw −log p(x, z) of one image x [1, D] over the latent plane, with decoded images on it."""
    figure, ((axes,),) = canvas(1, 1, (8, 8))
    target, centre = model.posterior(x), torch.zeros(2)
    contours(axes, lambda z: -target.log_prob(z), centre, half)
    ink = mosaic(model.decode(cell_centres(centre, half, side)), shape, margin=3)
    axes.imshow(0 * ink, alpha=ink, cmap="gray", extent=(-half, half, -half, half), zorder=2)
    inset = axes.inset_axes((1.02, 0.86, 0.14, 0.14))
    inset.imshow(x.reshape(shape).numpy(), cmap="gray_r")
    inset.set(xticks=[], yticks=[])
    axes.set(xlabel="$z_1$", ylabel="$z_2$")
    return figure


@torch.no_grad()
def latent_space(
    model: VAE, images: Tensor, labels: Tensor, shape: tuple[int, int], side: int = 20
) -> Figure:
    """Draw decoded means over Φ(z), and there the refined latents of some images, coloured by digit."""
    normal = torch.distributions.Normal(0.0, 1.0)
    images, labels = images[:SHOWN], labels[:SHOWN]
    points = torch.cat([normal.cdf(model.refine(binarize(batch))[0]) for batch in images.split(BATCH)])
    figure, ((left, right),) = canvas(1, 2, (12, 6))
    means = model.decode(normal.icdf(cell_centres(torch.full((2,), 0.5), 0.5, side)))
    left.imshow(mosaic(means, shape), cmap="gray_r", extent=(0, 1, 0, 1))
    scatter = right.scatter(*points.T.numpy(), c=labels.numpy(), cmap="tab10", s=1.5, alpha=0.6)
    right.legend(*scatter.legend_elements(alpha=1.0), loc="center left", bbox_to_anchor=(1, 0.5))
    for axes in (left, right):
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="$Φ(z_1)$", ylabel="$Φ(z_2)$")
    return figure


def cell_centres(centre: Tensor, half: float, side: int) -> Tensor:
    """The centres of side × side cells of a square, row by row from below.  [side², 2]"""
    return grid(centre, half * (1 - 1 / side), side).reshape(-1, 2)


def mosaic(images: Tensor, shape: tuple[int, int], margin: int = 0) -> np.ndarray:
    """Images [side², D] at their cells, as one image."""
    side = round(len(images) ** 0.5)
    tiles = torch.nn.functional.pad(images.reshape(-1, *shape), 4 * (margin,)).clamp(0, 1)
    return torch.cat([torch.cat([*row], -1) for row in tiles.unflatten(0, (side, side)).flip(0)]).numpy()
