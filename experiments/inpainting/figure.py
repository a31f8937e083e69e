"""The figure: draws of both methods beside the images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from experiments.report import save_figure
from hmcvi.commands.inpaint_chains import METHODS, Outcome, Problem
from hmcvi.commands.inpaint_figure import draw_blocks, paint

COLUMNS = 8  # draws of each method


def draw(
    problem: Problem,
    outcomes: Mapping[str, Outcome],
    reports: Mapping[str, Any],
    shape: tuple[int, int],
    path: Path,
) -> None:
    """A row for each image: it, what was observed, and the last draws of its first chain, in order."""
    missing = problem.inpainting.missing
    originals = paint(problem.images, torch.zeros_like(missing))
    observed = paint(problem.images.where(~missing, 0.0), missing)
    blocks = {"image, observed": torch.stack([originals, observed], 1)}
    for method, outcome in outcomes.items():
        total, every = outcome.latents.shape[2], reports[method]["shown_every"]
        draws = torch.arange(total - 1 - (COLUMNS - 1) * every, total, every)
        blocks[_title(method, reports[method])] = paint(outcome.means(draws)[:, 0], missing)
    save_figure(draw_blocks(blocks, shape), path)


def _title(method: str, report: Mapping[str, Any]) -> str:
    every = report["shown_every"]
    which = "consecutive transitions" if every == 1 else f"every {every}th transition"
    worth = f"{report['ess_per_cpu_second']:.3g} effective draws per CPU second"
    return f"{METHODS[method]}, {which}\n{worth}, R-hat up to {max(report['worst_r_hat']):.2f}"
