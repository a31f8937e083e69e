"""Pictures of in-painted images: observed pixels black on white, missing ones white on black."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from hmcvi.experiments.inpainting.runs import METHODS, Outcome, Problem

HIDDEN = (0.62, 0.77, 0.90)  # colour of pixels that are not known
SHOWN_IMAGES, SHOWN_DRAWS = 12, 6
COLUMNS = 10  # of consecutive draws
GAP = 2  # pixels between tiles


def draw_grid(problem: Problem, outcomes: Mapping[str, Outcome], shape: tuple[int, int], path: Path) -> None:
    """A row for each image: the original, what was observed, and draws of each method."""
    images = problem.images[:SHOWN_IMAGES]
    missing = problem.inpainting.missing
    blocks = {"original": _ink(images)[:, None], "observed": _paint(images, missing, hide=True)[:, None]}
    for method, outcome in outcomes.items():
        draws = outcome.spread(SHOWN_DRAWS)
        shown = outcome.means(draws)[: len(images)]
        # one chain after the other, so that all of them are seen
        chains = torch.arange(len(draws)) % problem.num_chains
        blocks[METHODS[method]] = _paint(shown[:, chains, torch.arange(len(draws))], missing)
    widths = [block.shape[1] for block in blocks.values()]
    figure = Figure(figsize=(0.75 * sum(widths) + 0.6, 0.78 * len(images) + 0.5), layout="constrained")
    panels = figure.subplots(1, len(blocks), width_ratios=widths, squeeze=False)[0]
    for panel, (title, block) in zip(panels, blocks.items(), strict=True):
        _show(panel, tiles(block, shape), title)
    figure.savefig(path, dpi=130)


def draw_runs(
    problem: Problem,
    outcomes: Mapping[str, Outcome],
    reports: Mapping[str, Any],
    shape: tuple[int, int],
    path: Path,
) -> None:
    """Two rows for each image: it, what was observed, and the last draws of the first chain, in order."""
    missing, rows = problem.inpainting.missing, len(problem.images)
    figure = Figure(figsize=(1.6 + 0.62 * COLUMNS * len(outcomes), 1.3 * rows + 0.7), layout="constrained")
    panels = figure.subplots(1, 1 + len(outcomes), width_ratios=[1, *[COLUMNS] * len(outcomes)])
    pairs = torch.stack([_ink(problem.images), _paint(problem.images, missing, hide=True)], 1)
    _show(panels[0], tiles(pairs.flatten(0, 1)[:, None], shape), "image,\nobserved")
    for panel, (method, outcome) in zip(panels[1:], outcomes.items(), strict=True):
        draws = torch.arange(outcome.latents.shape[2])[-2 * COLUMNS :]
        shown = _paint(outcome.means(draws)[:, 0], missing).unflatten(1, (2, COLUMNS)).flatten(0, 1)
        _show(panel, tiles(shown, shape), _title(method, reports[method]))
    figure.savefig(path, dpi=130)


def _title(method: str, report: Mapping[str, Any]) -> str:
    which = "consecutive transitions" if report["thin"] == 1 else f"every {report['thin']}th transition"
    worth = f"{report['ess_per_cpu_second']:.2g} effective draws per CPU second"
    return f"{METHODS[method]}, {which}\n{worth}, R-hat up to {max(report['worst_r_hat']):.2f}"


def _ink(images: Tensor) -> Tensor:
    """Black on white  [..., D] -> [..., D, 3]"""
    return (1 - images.double().clamp(0, 1))[..., None].expand(*images.shape, 3)


def _paint(images: Tensor, missing: Tensor, hide: bool = False) -> Tensor:
    """Observed pixels black on white, missing ones white on black, or hidden.  [..., D] -> [..., D, 3]"""
    ink = _ink(images)
    other = torch.tensor(HIDDEN, dtype=ink.dtype) if hide else 1 - ink
    return other.where(missing[:, None], ink)


def tiles(images: Tensor, shape: tuple[int, int]) -> np.ndarray:
    """Images [rows, columns, D, 3] side by side."""
    padded = torch.nn.functional.pad(images.unflatten(2, shape), (0, 0, 0, GAP, 0, GAP), value=0.85)
    rows, columns, height, width, _ = padded.shape
    return padded.transpose(1, 2).reshape(rows * height, columns * width, 3)[:-GAP, :-GAP].numpy()


def _show(axes: Axes, picture: np.ndarray, title: str) -> None:
    axes.imshow(picture, interpolation="nearest")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_axis_off()
