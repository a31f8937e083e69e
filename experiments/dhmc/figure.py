"""The figure: exact and estimated laws, errors against work, effective samples per evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from experiments.dhmc.problems import DHMC, METROPOLIS, Problem

if TYPE_CHECKING:
    from experiments.dhmc import Outcome

COLORS = {DHMC: "tab:blue", METROPOLIS: "tab:orange"}


def draw(
    problems: Sequence[Problem],
    outcomes: dict[str, dict[str, Outcome]],
    summaries: dict[str, Any],
    path: Path,
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.7 * len(problems)), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(problems), 3, squeeze=False)
    for (law, error, ess), problem in zip(rows, problems, strict=True):
        runs = outcomes[problem.name]
        draw_law(law, problem, runs)
        draw_error(error, problem, runs)
        draw_ess(ess, summaries[problem.name], runs)
    figure.savefig(path, dpi=120)


def draw_law(axes: Any, problem: Problem, runs: dict[str, Outcome]) -> None:
    """The exact law of one quantity and what each kernel drew."""
    points, law = problem.law()
    whole = bool((points == points.round()).all())
    likely = points[law > 1e-3 * law.max()]
    low, high = float(likely.min()), float(likely.max())
    if whole:
        axes.bar(points.numpy(), law.numpy(), color="lightgrey", width=0.9, label="exact")
    else:
        axes.fill_between(points.numpy(), law.numpy(), color="lightgrey", label="exact")
    for (name, run), marker in zip(runs.items(), "ox", strict=True):
        # jumps fall on edges, integers between them
        edges = torch.arange(low - 0.5, high + 1, 1.0) if whole else torch.arange(-4.0, 4.0, 0.125)
        height = histogram(run.draws[problem.shown].flatten(), edges)
        centres = (edges[1:] + edges[:-1]) / 2
        axes.plot(centres.numpy(), height.numpy(), marker, color=COLORS[name], markersize=4, label=name)
    axes.set_xlim(low - 0.5, high + 0.5)
    axes.set_ylim(0, 1.7 * float(law.max()))
    axes.set_xlabel(problem.shown)
    axes.set_ylabel("probability" if whole else "density")
    axes.set_title(f"{problem.name}: the law of {problem.shown}")
    axes.legend(frameon=False, loc="upper right")


def histogram(values: Tensor, edges: Tensor) -> Tensor:
    """Densities of the intervals between the edges."""
    counts, _ = torch.histogram(values.double(), edges.double())
    return counts / (len(values) * edges.diff())


def draw_error(axes: Any, problem: Problem, runs: dict[str, Outcome]) -> None:
    """Root mean square over chains of the error of one chain's average, against its evaluations."""
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


def draw_ess(axes: Any, summary: dict[str, Any], runs: dict[str, Outcome]) -> None:
    """Effective samples per 1000 evaluations of every quantity."""
    every = []
    for shift, name in zip((-0.2, 0.2), runs, strict=True):
        quantities = summary[name]["quantities"]
        heights = [entry["ess_per_1000_evaluations"] for entry in quantities.values()]
        places = [place + shift for place in range(len(heights))]
        bars = axes.bar(places, heights, 0.4, color=COLORS[name], label=name)
        axes.bar_label(bars, [f"{height:.2g}" for height in heights], fontsize=8)
        axes.set_xticks(range(len(quantities)), list(quantities))
        every += heights
    axes.set_yscale("log")
    axes.set_ylim(0.4 * min(every), 6 * max(every))
    axes.set_ylabel("effective samples per 1000 evaluations")
    axes.set_title(f"efficiency; slowest quantity: {summary['ratio']:.1f} to 1")
    axes.legend(frameon=False, loc="upper right")
