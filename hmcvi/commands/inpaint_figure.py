"""Draw in-painted images: ink is black, the paper of missing pixels blue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import pad

from hmcvi.commands.inpaint_chains import METHODS, Outcome, Problem

PAPER = (0.66, 0.83, 0.97)  # of missing pixels
SHOWN_IMAGES, SHOWN_DRAWS = 12, 8
TILE = 0.62  # inches


def draw_grid(problem: Problem, outcomes: Mapping[str, Outcome], shape: tuple[int, int], path: Path) -> None:
    """A row for each image: the original, what was observed, and draws of each method."""
    images, missing = problem.images[:SHOWN_IMAGES], problem.inpainting.missing
    nothing = torch.zeros_like(missing)
    blocks = {
        "original": paint(images, nothing)[:, None],
        "observed": paint(images.where(~missing, 0.0), missing)[:, None],
    }
    for method, outcome in outcomes.items():
        draws = outcome.spread(SHOWN_DRAWS)
        order = torch.arange(len(draws))
        # one chain after the other, so that all of them are seen
        shown = outcome.means(draws)[: len(images), order % problem.num_chains, order]
        blocks[f"draws of {METHODS[method]}"] = paint(shown, missing)
    draw_blocks(blocks, shape).savefig(path, dpi=200)


def paint(images: Tensor, missing: Tensor) -> Tensor:
    """Ink on white paper, on blue where pixels are missing.  [..., D] -> [..., D, 3]"""
    paper = torch.tensor(PAPER, dtype=torch.float64).where(missing[:, None], 1.0)
    return (1 - images.double().clamp(0, 1))[..., None] * paper


def draw_blocks(blocks: Mapping[str, Tensor], shape: tuple[int, int]) -> Figure:
    """Blocks of images [rows, columns, D, 3] beside each other, each under its title."""
    gap = max(1, min(shape) // 14)
    pictures, places, width = [], [], 0
    for block in blocks.values():
        tiles = pad(block.unflatten(2, shape), (0, 0, 0, gap, 0, gap), value=0.85)
        picture = pad(tiles.transpose(1, 2).flatten(2, 3).flatten(0, 1), (0, 0, 0, 3 * gap), value=1.0)
        places.append(width)
        pictures.append(picture)
        width += picture.shape[1]
    whole = torch.cat(pictures, 1)
    inches = TILE / (shape[1] + gap)
    size = inches * width, inches * len(whole)
    figure = Figure(figsize=(size[0] + 0.2, size[1] + 0.6))
    axes = figure.add_axes((0.1 / (size[0] + 0.2), 0.0, size[0] / (size[0] + 0.2), size[1] / (size[1] + 0.6)))
    axes.imshow(whole.numpy(), interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    for place, title in zip(places, blocks, strict=True):
        axes.text(place, -2 * gap, title, fontsize=8.5, va="bottom")
    return figure
