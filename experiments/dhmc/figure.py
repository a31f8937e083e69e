"""The figure: exact and estimated distributions, errors against work, effective samples per evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

from experiments.dhmc.problems import DHMC, EVENTS, FACTORED, METROPOLIS, Problem
from experiments.dhmc.runs import Outcome
from experiments.report import BLUE, GREEN, ORANGE, PURPLE, canvas, grouped_bars, save_figure

COLORS = {DHMC: BLUE, FACTORED: GREEN, EVENTS: PURPLE, METROPOLIS: ORANGE}
MARKERS = {DHMC: "o", FACTORED: "s", EVENTS: "^", METROPOLIS: "x"}


def draw(
    problems: Sequence[Problem],
    outcomes: dict[str, dict[str, Outcome]],
    summaries: dict[str, Any],
    path: Path,
) -> None:
    figure, rows = canvas(len(problems), 3, (13, 3.7 * len(problems)))
    for (distribution, error, ess), problem in zip(rows, problems, strict=True):
        runs = outcomes[problem.name]
        draw_distribution(distribution, problem, runs)
        draw_error(error, problem, runs)
        draw_ess(ess, summaries[problem.name], runs)
    save_figure(figure, path)


def draw_distribution(axes: Axes, problem: Problem, runs: dict[str, Outcome]) -> None:
    """Draw the exact distribution of one quantity and what each kernel drew of it."""
    points, exact = problem.distribution()
    whole = bool((points == points.round()).all())
    likely = exact > 1e-3 * exact.max()
    low, high = float(points[likely].min()), float(points[likely].max())
    if whole:
        axes.bar(points[likely].numpy(), exact[likely].numpy(), color="lightgrey", width=0.9, label="exact")
    else:
        axes.fill_between(points.numpy(), exact.numpy(), color="lightgrey", label="exact")
    for name, run in runs.items():
        # jumps fall on edges, integers between them
        edges = torch.arange(low - 0.5, high + 1, 1.0) if whole else torch.arange(-4.0, 4.0, 0.125)
        height = histogram(run.draws[problem.shown].flatten(), edges)
        centres = (edges[1:] + edges[:-1]) / 2
        axes.plot(
            centres.numpy(), height.numpy(), MARKERS[name], color=COLORS[name], markersize=4, label=name
        )
    axes.set_xlim(low - 0.5, high + 0.5)
    axes.set_ylim(0, 1.7 * float(exact.max()))
    axes.set_xlabel(problem.shown)
    axes.set_ylabel("probability" if whole else "density")
    axes.set_title(f"{problem.name}: the distribution of {problem.shown}")
    axes.legend(frameon=False, loc="upper right")


def histogram(values: Tensor, edges: Tensor) -> Tensor:
    """Densities of the intervals between the edges."""
    counts, _ = torch.histogram(values.double(), edges.double())
    return counts / (len(values) * edges.diff())


def draw_error(axes: Axes, problem: Problem, runs: dict[str, Outcome]) -> None:
    """Draw the root mean square over chains of the error of one chain's average, against its evaluations."""
    quantity = list(problem.exact())[-1]
    exact = problem.exact()[quantity]
    for name, run in runs.items():
        values = run.draws[quantity]
        count = torch.arange(1, values.shape[1] + 1)
        error = (values.cumsum(1) / count - exact).square().mean(0).sqrt()
        shown = torch.unique(torch.logspace(0, float(torch.tensor(len(count)).log10()), 60).long()) - 1
        axes.loglog((count[shown] * run.cost).numpy(), error[shown].numpy(), color=COLORS[name], label=name)
    axes.set_xlabel("evaluations of one chain (a gradient counts as 3)")
    axes.set_ylabel("root mean square error over chains")
    axes.set_title(f"running average of one chain: {quantity}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def draw_ess(axes: Axes, summary: dict[str, Any], runs: dict[str, Outcome]) -> None:
    """Draw the effective samples per 1000 evaluations of every quantity."""
    every = []
    for index, name in enumerate(runs):
        quantities = summary[name]["quantities"]
        heights = [entry["ess_per_1000_evaluations"] for entry in quantities.values()]
        bars = grouped_bars(axes, (index, len(runs)), heights, 1.0, color=COLORS[name], label=name)
        axes.bar_label(bars, [f"{height:.2g}" for height in heights], fontsize=8)
        axes.set_xticks(range(len(quantities)), list(quantities))
        every += heights
    axes.set_yscale("log")
    axes.set_ylim(0.4 * min(every), 6 * max(every))
    axes.set_ylabel("effective samples per 1000 evaluations")
    axes.set_title(f"efficiency; slowest quantity: DHMC {summary['ratio']:.1f} to 1")
    axes.legend(frameon=False, loc="upper right")
