"""The figure: consecutive draws of both methods beside the images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hmcvi.commands.inpaint_chains import METHODS, Outcome, Problem
from hmcvi.commands.inpaint_figure import draw_blocks, paint

COLUMNS = 10  # of consecutive draws


def draw(
    problem: Problem,
    outcomes: Mapping[str, Outcome],
    reports: Mapping[str, Any],
    shape: tuple[int, int],
    path: Path,
) -> None:
    """Two rows for each image: it, what was observed, and the last draws of its first chain, in order."""
    missing = problem.inpainting.missing
    originals = paint(problem.images, torch.zeros_like(missing))
    observed = paint(problem.images.where(~missing, 0.0), missing)
    blocks = {"image,\nobserved": torch.stack([originals, observed], 1).flatten(0, 1)[:, None]}
    for method, outcome in outcomes.items():
        total, every = outcome.latents.shape[2], reports[method]["shown_every"]
        draws = torch.arange(total - (2 * COLUMNS - 1) * every - 1, total, every)
        shown = paint(outcome.means(draws)[:, 0], missing)
        blocks[_title(method, reports[method])] = shown.unflatten(1, (2, COLUMNS)).flatten(0, 1)
    draw_blocks(blocks, shape, path)


def _title(method: str, report: Mapping[str, Any]) -> str:
    every = report["shown_every"]
    which = "consecutive transitions" if every == 1 else f"every {every}th transition"
    worth = f"{report['ess_per_cpu_second']:.2g} effective draws per CPU second"
    return f"{METHODS[method]}, {which}\n{worth}, R-hat up to {max(report['worst_r_hat']):.2f}"
