"""Figures of the Gaussian process and of the decoder: efficiency, traces and histograms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

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
HISTOGRAM: dict[str, Any] = {"histtype": "stepfilled", "alpha": 0.7}


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
