"""Figures: data, posteriors of every method, one row each, and effective draws per second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde
from torch import Tensor

from experiments.generators.reference import Reference
from experiments.generators.runs import Outcome
from experiments.report import (
    BLUE,
    DARK,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    canvas,
    grouped_bars,
    label_row,
    save_figure,
    title,
)

COLORS = (BLUE, SKY, GREEN, PURPLE, RED, DARK)
BINS = 60


def draw(
    outcomes: Mapping[str, Outcome],
    reference: Reference,
    reports: Mapping[str, Any],
    truth: Mapping[str, float],
    path: Path,
) -> None:
    figure = Figure(figsize=(11, 1.35 * len(outcomes) + 3.6), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.35 * len(outcomes) + 0.4, 3.2])
    parts[0].suptitle(
        "Posteriors of each method; black line: the reference; orange: the true value",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    axes = parts[0].subplots(len(outcomes), len(truth), squeeze=False, sharex="col")
    for row, (name, outcome), color in zip(axes, outcomes.items(), COLORS, strict=False):
        label_row(row[0], name.replace(", ", ",\n"))
        for panel, parameter in zip(row, truth, strict=True):
            draw_posterior(panel, outcome.parameters[parameter].flatten().numpy(), color)
            draw_reference(panel, reference, parameter)
            panel.axvline(truth[parameter], color=ORANGE, linestyle="--", linewidth=1.8)
    for column, parameter in enumerate(truth):
        shown = np.concatenate([outcome.parameters[parameter].flatten() for outcome in outcomes.values()])
        axes[0, column].set_xlim(*np.quantile(shown, [0.002, 0.998]))
        axes[-1, column].set_xlabel(f"${parameter[0]}_{parameter[1:]}$")
    draw_efficiency(parts[1].subplots(), reports, list(truth))
    save_figure(figure, path)


def draw_posteriors(parameters: Mapping[str, Tensor], truth: Mapping[str, float], path: Path) -> None:
    """One method's, with the true values."""
    figure, panels = canvas(1, len(truth), (11, 2.6))
    for axes, (name, value) in zip(panels[0], truth.items(), strict=True):
        draw_posterior(axes, parameters[name].flatten().numpy(), BLUE)
        axes.axvline(value, color=ORANGE, linestyle="--", linewidth=1.8)
        axes.set_xlabel(f"${name[0]}_{name[1:]}$")
    save_figure(figure, path)


def draw_posterior(axes: Axes, values: np.ndarray, color: str) -> None:
    low, high = np.quantile(values, [0.001, 0.999])
    axes.hist(values, BINS, range=(low, high), density=True, histtype="stepfilled", color=color, alpha=0.75)
    axes.set_yticks([])
    axes.tick_params(labelsize=7)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(-2, 3))


def draw_reference(axes: Axes, reference: Reference, parameter: str) -> None:
    """Draw a smooth line through the weighted draws."""
    summary, values = reference.summary(parameter), reference.parameters[parameter].numpy()
    reach = 4 * summary["standard_deviation"]
    heights, edges = np.histogram(
        values, BINS, (summary["mean"] - reach, summary["mean"] + reach), True, reference.weights.numpy()
    )
    axes.plot((edges[1:] + edges[:-1]) / 2, heights, color="black", linewidth=1.0)


def draw_efficiency(axes: Axes, reports: Mapping[str, Any], parameters: list[str]) -> None:
    for index, ((name, report), color) in enumerate(zip(reports.items(), COLORS, strict=False)):
        summaries = [report["parameters"][parameter] for parameter in parameters]
        heights, errors = (
            [summary[key] for summary in summaries]
            for key in ("single_chains_per_cpu_second", "single_chains_error")
        )
        worst = max(summary["r_hat"] for summary in summaries)
        label = f"{name}  (R-hat {worst:.2f})"
        place = (index, len(reports))
        grouped_bars(axes, place, heights, color=color, label=label, yerr=errors, ecolor=DARK)
    axes.set_xticks(range(len(parameters)), [f"${name[0]}_{name[1:]}$" for name in parameters])
    axes.set_yscale("log")
    axes.set_ylabel("effective draws per second")
    title(axes, "Effective draws per second of the processor, warm-up included; chains counted singly")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw_sample(observed: Tensor, many: Tensor, path: Path) -> None:
    """A histogram of the data [N], the data as ticks, and a smooth density of many more draws."""
    figure, panels = canvas(1, 1, (7, 3.2))
    axes, values = panels[0, 0], observed.numpy()
    axes.hist(values, 40, density=True, color=ORANGE, alpha=0.4, label=f"the {len(values)} observations")
    axes.plot(values, np.zeros_like(values), "|", color=ORANGE, markersize=12)
    low, high = values.min() - 0.5, values.max() + 0.5
    grid = np.linspace(low, high, 400)
    density = gaussian_kde(many.numpy()[(many.numpy() > low) & (many.numpy() < high)])(grid)
    axes.plot(grid, density, color=GREEN, label=f"kernel density of {len(many):,} draws of the true model")
    axes.set_xlabel("x")
    axes.set_ylabel("density")
    axes.legend(fontsize=8)
    save_figure(figure, path)


def draw_paths(observed: Tensor, simulated: Mapping[str, Tensor], path: Path) -> None:
    """Observed populations [2 N_s], and the last simulation of the first chain of some methods."""
    figure, panels = canvas(1, 2, (11, 3.6), sharex=True)
    populations = zip(panels[0], ("prey", "predators"), observed.view(-1, 2).T, strict=True)
    for index, (axes, name, values) in enumerate(populations):
        axes.plot(range(1, len(values) + 1), values, color=DARK, linewidth=1.5, label="observed")
        for (method, found), color in zip(simulated.items(), (BLUE, GREEN, RED), strict=False):
            line = found.view(-1, 2)[:, index]
            axes.plot(range(1, len(line) + 1), line, color=color, linestyle="--", linewidth=1, label=method)
        title(axes, name)
        axes.set_xlabel("time")
    panels[0, 0].legend(fontsize=8)
    save_figure(figure, path)
