"""The figures: errors and estimates against the time they took."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor

from experiments.report import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    canvas,
    grouped_bars,
    save_figure,
    title,
)

COLORS = {"AIS": DARK, "ST": ORANGE, "Gibbs CT": BLUE, "CT-HMC": GREEN, "CT-NUTS": PURPLE}
BARS = 3  # standard errors
NEAR = 1.0  # nats above and below the bounds that are shown


def draw_boltzmann(result: Mapping[str, Any], path: Path) -> None:
    """Errors relative to those of the base, as the thesis shows them."""
    figure, panels = canvas(1, 3, (12, 4.4))
    titles = {"log_z": "log Z", "mean": "E[x]", "covariance": "Cov[x]"}
    for axes, (quantity, symbol) in zip(panels[0], titles.items(), strict=True):
        guess = result["base"][quantity]["rmse"]
        for name, curve in result["methods"].items():
            time = np.array([point["cpu_seconds_of_one_run"] for point in curve])
            rmse, se = (np.array([point[quantity][key] for point in curve]) / guess for key in ("rmse", "se"))
            if name in COLORS:
                axes.plot(time, rmse, color=COLORS[name], label=name, marker="o", markersize=3)
                low = np.maximum(rmse - BARS * se, 0.2 * rmse)
                axes.fill_between(time, low, rmse + BARS * se, color=COLORS[name], alpha=0.15, linewidth=0)
            else:
                style = {"color": RED, "marker": "s", "linestyle": ":", "markersize": 4, "capsize": 2}
                axes.errorbar(time, rmse, BARS * se, label=name, **style)
        axes.axhline(1, color=GREY, linestyle="--", label="base of mean-field fits")
        title(axes, f"RMSE of {symbol}, relative to the base's {guess:.2g}")
        axes.set_xlabel("CPU seconds of one run on one system")
        axes.set_xscale("log")
        axes.set_yscale("log")
        logarithmic(axes.xaxis)
        logarithmic(axes.yaxis)
        axes.grid(True, which="both", linewidth=0.3, alpha=0.5)
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8
    )
    save_figure(figure, path)


def draw_samples(draws: Tensor, path: Path) -> None:
    """Two coordinates of independent draws  [draws, 2]"""
    figure, panels = canvas(1, 1, (5, 5))
    panels[0, 0].plot(*draws.T.numpy(), ".", color=BLUE, markersize=1, alpha=0.4)
    panels[0, 0].set_xlabel("along the eigenvector with the second largest eigenvalue")
    panels[0, 0].set_ylabel("with the largest")
    panels[0, 0].set_aspect("equal")
    save_figure(figure, path)


def logarithmic(axis: Axis) -> None:
    """Mark an axis with plain numbers at 1, 2 and 5."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def draw_images(result: Mapping[str, Any], path: Path) -> None:
    """For each model mean estimates between the bounds, and errors of single estimates, against time."""
    models, settings = result["models"], result["settings"]
    figure, panels = canvas(2, len(models), (6 * len(models), 8))
    for (above, below), (model, report) in zip(panels.T, models.items(), strict=True):
        bounds = {name: report["sandwich"][name]["mean"] for name in ("lower", "upper")}
        middle = sum(bounds.values()) / 2
        for name, curve in report["methods"].items():
            time = [point["cpu_seconds"] for point in curve]
            style = {"color": COLORS[name], "label": name, "marker": "o", "markersize": 3, "capsize": 2}
            errors = [BARS * point["bias_se"] for point in curve]
            above.errorbar(time, [point["mean"] for point in curve], errors, **style)
            errors = [BARS * point["rmse_se"] for point in curve]
            below.errorbar(time, [point["rmse"] for point in curve], errors, **style)
        for (bound, value), color, offset in zip(bounds.items(), (RED, DARK), (4, 0), strict=True):
            dashes = {"color": color, "linestyle": (offset, (4, 4)), "linewidth": 1}  # interleaved
            above.axhline(value, label=f"{bound} bound {value:.2f}", **dashes)
        above.set_ylim(middle - NEAR, middle + NEAR)
        title(above, f"{model}: {settings['images']} images, {settings['runs']} runs, mean ± {BARS} errors")
        above.set_ylabel("log p(x) per image")
        below.set_ylabel("RMSE of log p(x) of an image")
        below.set_yscale("log")
        logarithmic(below.yaxis)
        above.legend(fontsize=8, loc="lower right")
        for axes in (above, below):
            axes.set_xscale("log")
            logarithmic(axes.xaxis)
            axes.set_xlabel("CPU seconds of one run on all images")
            axes.grid(True, linewidth=0.3, alpha=0.5)
    save_figure(figure, path)


def draw_radon(result: Mapping[str, Any], path: Path) -> None:
    """Draw everything, and what is near the answer; tempered runs begin when ADVI has ended."""
    figure, ((whole, near),) = canvas(1, 2, (12, 4.4))
    fits, annealed, exact = result["advi"], result["ais"], result["exact"]
    for axes in (whole, near):
        for name, report in result["methods"].items():
            curve = report["curve"]
            time = [fits[-1]["cpu_seconds"] + point["cpu_seconds"] for point in curve]
            mean = [point["mean"] for point in curve]
            low, high = ([point["mean"] + sign * BARS * point["se"] for point in curve] for sign in (-1, 1))
            axes.plot(time, mean, color=COLORS[name], label=name)
            axes.fill_between(time, low, high, color=COLORS[name], alpha=0.2, linewidth=0)
        axes.axhline(exact, color=DARK, linewidth=1, label=f"exact {exact:.2f}")
        label = f"AIS {annealed['log_z']:.2f} ± {annealed['std_error']:.2f}"
        axes.axhline(annealed["log_z"], color=ORANGE, linestyle="--", linewidth=1, label=label)
        axes.set_xscale("log")
        logarithmic(axes.xaxis)
        axes.set_xlabel("CPU seconds of ADVI and one run")
        axes.grid(True, linewidth=0.3, alpha=0.5)
    bound = fits[-1]["bound"]
    whole.plot(
        [fit["cpu_seconds"] for fit in fits],
        [fit["bound"] for fit in fits],
        color=SKY,
        marker="o",
        markersize=4,
        label="ADVI, its bound",
    )
    whole.axhline(
        bound, color=RED, linestyle="-.", linewidth=1, label=f"ζ, the bound of the base {bound:.2f}"
    )
    whole.set_ylim(bound - (exact - bound), exact + 0.5 * (exact - bound))
    near.set_ylim(exact - 1, exact + 1)
    whole.set_ylabel("log p(y)")
    title(whole, f"{result['settings']['num_runs']} runs: mean ± {BARS} errors")
    title(near, "Near the answer")
    whole.legend(fontsize=8, loc="lower right")
    save_figure(figure, path)


def draw_tails(result: Mapping[str, Any], path: Path) -> None:
    """The share of the evidence in intervals of log σ_b, exact and by each run."""
    figure, panels = canvas(1, 1, (9, 4))
    axes, edges = panels[0, 0], result["settings"]["edges"]
    runs, exact = result["runs"], result["exact"]["shares"]
    count = len(runs) + 1
    grouped_bars(axes, (0, count), exact, color=DARK, label=f"exact {result['exact']['log_z']:.2f}")
    for index, ((name, found), color) in enumerate(
        zip(runs.items(), (ORANGE, SKY, GREEN, BLUE), strict=False), 1
    ):
        heights, errors = ([entry[key] for entry in found["shares"]] for key in ("share", "se"))
        label = f"{name}: {found['log_z']:.2f} ± {found['std_error']:.2f}"
        grouped_bars(axes, (index, count), heights, color=color, label=label, yerr=errors, ecolor=GREY)
    axes.set_xticks(range(len(exact)), [f"{a:g} to {b:g}" for a, b in itertools.pairwise(edges)])
    axes.set_xlabel("log $\\sigma_b$")
    axes.set_ylabel("share of the exact evidence")
    axes.legend(fontsize=8)
    title(axes, "Where annealed chains find the evidence; ticks: ± 1 standard error")
    save_figure(figure, path)
