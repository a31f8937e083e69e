"""Figures of the normal model: efficiency and acceptance against the setting, and traces of x and u."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from torch import Tensor

from experiments.pseudo_marginal.figure import COLORS, HISTOGRAM
from experiments.pseudo_marginal.gaussian_model import Model
from experiments.pseudo_marginal.runs import Outcome
from experiments.report import DARK, GREY, canvas, label_row, save_figure, title

TRACE = 10_000  # draws of one chain that are shown
SEPARATION = 10  # of names at the ends of curves, in points
REACH = 4.5  # standard deviations
LINES = {1: "-", 8: "--", 32: ":"}
PER_EVALUATION, PER_SECOND = "single_chains_per_1000_evaluations", "single_chains_per_cpu_second"
Reports = Mapping[str, Any]


def draw_curves(reports: Reports, methods: Mapping[str, Any], path: Path) -> None:
    """One row for each N, one for slices of x: mean of single chains, ± one standard deviation."""
    rows = [
        ("N = 1", {name: f"{name}, N = 1" for name in ("PM-MH", "APM-MI+MH", "APM-SS+MH")}),
        ("N = 8", {name: f"{name}, N = 8" for name in ("PM-MH", "APM-MI+MH")}),
        ("N = 32", {name: f"{name}, N = 32" for name in ("PM-MH", "APM-MI+MH")}),
        ("slices of x,\nN = 1", {name: f"{name}, N = 1" for name in ("APM-MI+SS", "APM-SS+SS")}),
    ]
    figure, panels = canvas(len(rows), 3, (13, 12))
    for row, (label, names) in zip(panels, rows, strict=True):
        for name, key in names.items():
            report = reports[key]
            draw_band(row[0], report["grid"], report[PER_EVALUATION], COLORS[name], name)
            draw_band(row[1], report["grid"], report[PER_SECOND], COLORS[name], name)
            if report["acceptance_rate"][0] is not None:
                draw_band(row[2], report["grid"], report["acceptance_rate"], COLORS[name], name)
        label_row(row[0], label)
        for axes in row[:2]:
            axes.set_xlabel(methods[next(iter(names))].setting)
        row[2].set_xlabel("step size")
    for axes in panels[:3, 2]:
        axes.axhline(0.234, color=GREY, linestyle="--", linewidth=1)
        axes.text(
            0.02, 0.234, "0.234", transform=axes.get_yaxis_transform(), fontsize=8, color=GREY, va="bottom"
        )
    for n, line in LINES.items():
        report = reports[f"APM-MI+MH, N = {n}"]
        accepted, color = report["auxiliary_acceptance_rate"], COLORS["APM-MI+MH"]
        draw_band(panels[3, 2], report["grid"], accepted, color, f"N = {n}", line)
    for axes, text in zip(
        panels[0],
        ("Effective draws per 1000 evaluations", "Effective draws per CPU second", "Acceptance of x"),
        strict=True,
    ):
        title(axes, text)
    title(panels[3, 2], "Acceptance of new u, APM-MI+MH")
    figure.draw_without_rendering()
    for axes in panels.flat:
        spread_labels(axes)
    save_figure(figure, path)


def draw_band(
    axes: Axes, grid: list[float], points: list[dict[str, float]], color: str, name: str, line: str = "-"
) -> None:
    """Draw a curve with its name at its right end."""
    mean, sd = (np.array([point[key] for point in points]) for key in ("mean", "sd"))
    shown = mean > 0
    x, mean, sd = np.array(grid)[shown], mean[shown], sd[shown]
    axes.plot(x, mean, color=color, linestyle=line, marker=".", markersize=4)
    low = np.maximum(mean - sd, 0.2 * mean)  # for a logarithmic axis
    axes.fill_between(x, low, mean + sd, color=color, alpha=0.2, linewidth=0)
    axes.set_yscale("log")
    axes.set_xlim(0, 1.35 * max(grid))
    axes.annotate(
        name,
        (x[-1], mean[-1]),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=color,
    )


def spread_labels(axes: Axes) -> None:
    """Move names apart that would be written over each other."""
    low, high = np.log(axes.get_ylim())
    height = axes.get_window_extent().height / axes.figure.dpi * 72  # in points
    names = sorted((t for t in axes.texts if isinstance(t, Annotation)), key=lambda text: text.xy[1])
    taken = -np.inf
    for text in names:
        place = (np.log(text.xy[1]) - low) / (high - low) * height
        taken = max(place, taken + SEPARATION)
        text.set_position((5, taken - place))


def draw_traces(
    outcomes: Mapping[tuple[str, int], Outcome], auxiliary: Mapping[str, Tensor], model: Model, path: Path
) -> None:
    """The first chain of every method at its best setting, all chains as a histogram, and the same for u."""
    figure, rows = canvas(len(outcomes) + len(auxiliary), 2, (12, 13), width_ratios=[3, 1])
    x = float(model.mean[0]), math.sqrt(model.variance)
    for row, ((name, n), outcome) in zip(rows, outcomes.items(), strict=False):
        setting = f"{outcome.best['setting']:.2g}"
        draw_trace(row, outcome.trace.numpy(), COLORS[name], f"$x_1$, {name}\nN = {n}, setting {setting}", x)
    for row, (name, draws) in zip(rows[len(outcomes) :], auxiliary.items(), strict=True):
        draw_trace(row, draws.numpy(), COLORS[name], f"$u_1$, {name}\nN = 1", model.auxiliary_posterior())
    title(rows[0, 0], f"The last transitions of a chain, {TRACE:,} at most")
    title(rows[0, 1], "All chains; black: exact")
    save_figure(figure, path)


def draw_trace(row: Any, draws: np.ndarray, color: str, name: str, exact: tuple[float, float]) -> None:
    """Draw the first chain, and a histogram of all against the exact density.  draws: [chains, draws]"""
    (left, right), (mean, spread) = row, exact
    left.plot(draws[0, -TRACE:], color=color, linewidth=0.4)
    label_row(left, name)
    grid = np.linspace(mean - REACH * spread, mean + REACH * spread, 200)
    left.set_ylim(grid[0], grid[-1])
    style = {**HISTOGRAM, "color": color, "alpha": 0.6}
    right.hist(draws.flatten(), 80, range=(grid[0], grid[-1]), density=True, **style)
    height = np.exp(-0.5 * ((grid - mean) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
    right.plot(grid, height, color=DARK, linewidth=1.2)
    right.set_yticks([])
