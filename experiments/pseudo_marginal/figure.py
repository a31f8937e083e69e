"""The figures: efficiency against the setting of each method, and traces of the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.pseudo_marginal.runs import TRACE, Outcome
from experiments.report import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    canvas,
    grouped_bars,
    label_row,
    save_figure,
    title,
)
from hmcvi.sampling import Draws

COLORS = {"PM-MH": RED, "APM-MI+MH": BLUE, "APM-SS+MH": GREEN, "APM-MI+SS": PURPLE, "APM-SS+SS": ORANGE}
WITH_HMC = {**COLORS, "PM-HMC": DARK}
LINES = {1: "-", 8: "--", 32: ":"}
HISTOGRAM: dict[str, Any] = {"histtype": "stepfilled", "alpha": 0.7}


def draw_gaussian_latent(
    outcomes: Mapping[tuple[str, int], Outcome],
    reports: Mapping[str, Any],
    methods: Mapping[str, Any],
    model: Any,
    path: Path,
) -> None:
    figure = Figure(figsize=(12, 10), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[1, 1.5])
    axes = parts[0].subplots(1, 3)
    for name, num_importance in outcomes:
        report = reports[f"{name}, N = {num_importance}"]
        walks = methods[name].setting == "step size"
        style = {"color": COLORS[name], "linestyle": LINES[num_importance], "marker": ".", "markersize": 4}
        label = f"{name}, N = {num_importance}"
        axes[0 if walks else 1].plot(report["grid"], report["ess_per_1000_evaluations"], label=label, **style)
        if walks:
            axes[2].plot(report["grid"], report["acceptance_rate"], label=label, **style)
    axes[2].axhline(0.234, color=GREY, linewidth=0.8)
    titles = (
        "Effective draws per 1000 evaluations of the joint density",
        "The same, slices in x",
        "Acceptance of x (grey: 0.234)",
    )
    for panel, text, label in zip(axes, titles, ("step size", "width", "step size"), strict=True):
        panel.set_title(text, loc="left", fontsize=9)
        panel.set_xlabel(label)
        panel.set_yscale("log")
    for panel in axes[:2]:
        panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False)
    rows = parts[1].subplots(len(COLORS), 2, width_ratios=[3, 1], sharex="col")
    for row, name in zip(rows, COLORS, strict=True):
        draws = outcomes[name, 1].best(reports[f"{name}, N = 1"])[..., 0].numpy()
        _trace(row, draws, name, float(model.mean[0]), math.sqrt(model.variance))
    rows[-1, 0].set_xlabel("iteration")
    rows[-1, 1].set_xlabel("$x_1$")
    save_figure(figure, path)


def _trace(row: Any, draws: np.ndarray, name: str, mean: float, spread: float) -> None:
    """Draw the first chain, and a histogram of all against the exact density.  draws: [chains, draws]"""
    left, right = row
    left.plot(draws[0, -TRACE:], color=COLORS[name], linewidth=0.4)
    label_row(left, f"{name}\nN = 1")
    left.set_ylim(mean - 4.5 * spread, mean + 4.5 * spread)
    grid = np.linspace(mean - 4.5 * spread, mean + 4.5 * spread, 200)
    style = {**HISTOGRAM, "color": COLORS[name], "alpha": 0.6}
    right.hist(draws.flatten(), 80, range=(grid[0], grid[-1]), density=True, **style)
    _density(right, grid, mean, spread)


def _density(axes: Axes, grid: np.ndarray, mean: float, spread: float) -> None:
    height = np.exp(-0.5 * ((grid - mean) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
    axes.plot(grid, height, color=DARK, linewidth=1.2)
    axes.set_yticks([])


def draw_gp_probit(all_draws: Mapping[str, Draws], reports: Mapping[str, Any], path: Path) -> None:
    figure = Figure(figsize=(12, 9), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[1, 1.4])
    axes, curves = parts[0].subplots(1, 2, width_ratios=[2, 1])
    for index, (name, report) in enumerate(reports.items()):
        heights = list(report["ess_per_1000_evaluations"].values())
        worst = max(report["r_hat"].values())
        label = f"{name}  (R-hat {worst:.3f})"
        grouped_bars(axes, (index, len(reports)), heights, color=COLORS[name], label=label)
        so_far = report["r_hat_so_far"]
        curves.loglog(so_far["fits"], np.array(so_far["worst"]) - 1, color=COLORS[name])
    curves.axhline(0.05, color=GREY, linestyle="--", linewidth=1)
    title(curves, "Worst R-hat − 1")
    curves.set_xlabel("fits of each chain after warm-up")
    labels = ["$\\log s$", *(f"$\\log \\ell_{k}$" for k in range(1, len(heights)))]
    axes.set_xticks(range(len(heights)), labels)
    title(axes, "Effective draws per 1000 fits of Laplace's approximation")
    axes.legend(fontsize=8)
    rows = parts[1].subplots(len(reports), 2, width_ratios=[3, 1], sharex="col", squeeze=False)
    shown = np.concatenate([draws.position[..., 0].flatten() for draws in all_draws.values()])
    low, high = np.quantile(shown, [0.001, 0.999])
    for (left, right), (name, draws) in zip(rows, all_draws.items(), strict=True):
        values = draws.position[..., 0].numpy()
        left.plot(values[0], color=COLORS[name], linewidth=0.4)
        label_row(left, name)
        left.set_ylim(low, high)
        right.hist(values.flatten(), 80, range=(low, high), **HISTOGRAM, color=COLORS[name])
        right.set_yticks([])
    rows[-1, 0].set_xlabel("iteration of the first chain")
    rows[-1, 1].set_xlabel("$\\log s$, all chains")
    save_figure(figure, path)


def draw_vae_globals(
    all_draws: Mapping[str, Draws], reports: Mapping[str, Any], truth: Mapping[str, float], path: Path
) -> None:
    size, widths = (12, 1.25 * len(reports) + 1), [3, *[1] * len(truth)]
    figure, rows = canvas(len(reports), 1 + len(truth), size, width_ratios=widths, sharex="col")
    for row, (name, draws) in zip(rows, all_draws.items(), strict=True):
        row[0].plot(draws.variables["a"][0], color=WITH_HMC[name], linewidth=0.5)
        worst = max(entry["r_hat"] for entry in reports[name]["parameters"].values())
        least = min(entry["ess_per_1000_estimates"] for entry in reports[name]["parameters"].values())
        label = f"{name}\nR-hat {worst:.3f}\n{least:.1f} effective\nper 1000 estimates"
        label_row(row[0], label)
        for panel, (parameter, value) in zip(row[1:], truth.items(), strict=True):
            panel.hist(draws.variables[parameter].flatten(), 60, **HISTOGRAM, color=WITH_HMC[name])
            panel.axvline(value, color=GREY, linestyle="--", linewidth=1.5)
            panel.set_yticks([])
    rows[-1, 0].set_xlabel("contrast a of the first chain, by transition")
    for panel, label in zip(rows[-1, 1:], ("contrast a", "brightness b", "log-spread s"), strict=True):
        panel.set_xlabel(label)
    save_figure(figure, path)
