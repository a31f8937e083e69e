"""Slice sampling in pictures: brackets on a line, axes against random directions, ellipses, reflections.

Written are figure.png and result.json, the numbers behind it.  [after Graham 2018, figures 2.10 and 2.11]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.pictures import contours, narrow, plain
from experiments.pictures.slice_traces import (
    Bracket,
    Trace,
    ellipse_trace,
    line_trace,
    reflected_trace,
    telling,
)
from experiments.report import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    configure,
    save_figure,
    title,
    write,
)
from hmcvi.density import Density
from hmcvi.kernels import LinearSlice
from hmcvi.sampling import sample
from hmcvi.sampling.diagnostics import arviz

__all__ = ["configure", "run"]

F64 = torch.float64
MASS_99 = 9.21  # of χ² with two degrees of freedom
NUM_CHAINS, NUM_DRAWS, THIN = 64, 500, 2


def two_humps(position: Tensor) -> Tensor:
    """log of 0.6 N(−1.2, 0.7²) + 0.4 N(1.6, 0.6²).  [..., 1] -> [...]"""
    normal = torch.distributions.Normal(
        torch.tensor([-1.2, 1.6], dtype=F64), torch.tensor([0.7, 0.6], dtype=F64)
    )
    return (normal.log_prob(position) + torch.tensor([0.6, 0.4], dtype=F64).log()).logsumexp(-1)


def posterior(position: Tensor) -> Tensor:
    """Prior N(0, I), likelihood of an observed sum and a bent ridge.  [..., 2] -> [...]"""
    x, y = position.unbind(-1)
    return -0.5 * (x.square() + y.square()) - 0.5 * ((y + 0.5 * x.square() - 1.2) / 0.35).square()


def corner(position: Tensor) -> Tensor:
    """A hump near a corner of the unit square.  [..., 2] -> [...]"""
    x, y = position.unbind(-1)
    return -0.5 * ((x - 0.2) / 0.35).square() - 0.5 * ((y - 0.85) / 0.3).square()


def run(args: argparse.Namespace) -> int:
    generator = torch.Generator().manual_seed(args.seed)
    figure = Figure(figsize=(11, 7.4), layout="constrained")
    panels = figure.subplot_mosaic([["line", "line", "ellipse"], ["axis", "random", "square"]])
    result: dict[str, Any] = {}
    line = telling(lambda: line_trace(two_humps, _point(-0.9), 1.1, 4, generator), range(2, 4), num_edges=3)
    ellipse = telling(lambda: ellipse_trace(posterior, _point(0.8, 0.6), generator), range(2, 5))
    square = telling(lambda: reflected_trace(corner, _point(0.35, 0.7), 2.2, generator), range(2, 5))
    result["line"] = draw_line(panels["line"], line)
    result["ellipse"] = draw_ellipse(panels["ellipse"], ellipse)
    for direction, letter, color in (("axis", "c", BLUE), ("random", "d", GREEN)):
        result[direction] = draw_directions(panels[direction], direction, letter, color, args.seed)
    result["square"] = draw_square(panels["square"], square)
    save_figure(figure, write(args.out, result))
    return 0


def _point(*coordinates: float) -> Tensor:
    return torch.tensor(coordinates, dtype=F64)


def draw_line(axes: Axes, trace: Trace) -> dict[str, Any]:
    """Draw the density, and below it the bracket after each evaluation."""
    x = torch.linspace(-4, 4, 800, dtype=F64)
    density = two_humps(x[:, None]).exp()
    height, start = float(trace.height.exp()), float(trace.start)
    axes.plot(x, density, color=DARK, linewidth=1.5)
    axes.fill_between(x, 0, height, where=(density > height).tolist(), color=ORANGE, alpha=0.45, linewidth=0)
    axes.axhline(height, color=ORANGE, linewidth=1.2)
    axes.text(-3.95, height + 0.008, "height h ~ U(0, γ(z))", color="#8A5F00", fontsize=9)
    axes.plot([start, start], [0, float(trace.start_density)], color=DARK, linewidth=0.8, linestyle=":")
    axes.plot(start, height, "s", color="white", markeredgecolor=DARK, markersize=8, zorder=5, label="start")
    for row, bracket in enumerate(trace.brackets):
        _draw_bracket(axes, bracket, -0.025 * (row + 1))
    lowest = -0.025 * (len(trace.brackets) + 1)
    axes.plot([], [], "o", color="white", markeredgecolor=BLUE, markersize=6, label="end looked at")
    axes.plot([], [], "X", color=RED, markersize=8, label="miss: the bracket shrinks to it")
    axes.plot([], [], "o", color=GREEN, markeredgecolor=DARK, markersize=9, label="new state")
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(xlim=(-4, 4), ylim=(lowest, 0.47), xlabel="z", yticks=[0, 0.1, 0.2, 0.3], ylabel="density")
    title(axes, "a  On a line: a bracket, steps out, shrinking")
    axes.legend(fontsize=8, loc="upper right", framealpha=0.95)
    axes.tick_params(labelsize=8)
    return trace.numbers() | {"brackets": [[b.lower, b.upper] for b in trace.brackets]}


def _draw_bracket(axes: Axes, bracket: Bracket, level: float) -> None:
    axes.plot([bracket.lower, bracket.upper], [level, level], "|-", color=BLUE, markersize=8, linewidth=1.5)
    axes.text(-3.95, level, bracket.name, fontsize=7.5, va="center", color=DARK)
    if bracket.point is None:
        return
    if bracket.name == "new state":
        axes.plot(bracket.point, level, "o", color=GREEN, markeredgecolor=DARK, markersize=9, zorder=5)
    elif bracket.name == "shrink":
        axes.plot(bracket.point, level, "X", color=RED, markersize=8, zorder=5)
    else:
        axes.plot(bracket.point, level, "o", color="white", markeredgecolor=BLUE, markersize=6, zorder=5)


def draw_directions(axes: Axes, direction: str, letter: str, color: str, seed: int) -> dict[str, float]:
    """Draw every second of 1000 transitions; the numbers are of all 64 chains."""
    kernel = LinearSlice(Density(narrow), width=1.0, max_step_out=4, direction=direction)
    start = torch.zeros(NUM_CHAINS, 2, dtype=F64)
    # without a check: slow mixing is what the picture shows
    draws = sample(kernel, start, NUM_DRAWS, thin=THIN, seed=seed, progress=False, check=False)
    contours(axes, narrow, (-3.6, 3.6), (-3.6, 3.6), (0.5 * MASS_99,))
    axes.plot(*draws.position[0].T, "-", color=color, linewidth=0.35, alpha=0.5)
    axes.plot(*draws.position[0].T, "o", color=color, markersize=2)
    evaluations = float(draws.stats["num_evaluations"].sum())
    per_evaluation = 1000 * float(arviz().ess(draws.position.sum(-1).numpy())) / evaluations
    plain(axes, f"{letter}  {'Along axes' if direction == 'axis' else 'In random directions'}")
    axes.set(xlabel="z₁", ylabel="z₂", xlim=(-3.6, 3.6), ylim=(-3.6, 3.6))
    axes.text(
        3.4, -3.35, f"{per_evaluation:.1f} effective draws\nper 1000 evaluations", ha="right", fontsize=9
    )
    return {
        "ess_per_1000_evaluations": per_evaluation,
        "evaluations_per_transition": evaluations / (NUM_CHAINS * NUM_DRAWS * THIN),
    }


def draw_ellipse(axes: Axes, trace: Trace) -> dict[str, Any]:
    contours(axes, posterior, (-2.6, 2.6), (-2.6, 2.6), (0.2, 1.0, 2.3, 4.6))
    _draw_curve(axes, trace, SKY)
    assert trace.other is not None
    axes.plot(*trace.other, "D", color="white", markeredgecolor=BLUE, markersize=7, label="n ~ N(0, Σ)")
    plain(axes, "b  On an ellipse through state and draw")
    axes.set(xlabel="z₁", ylabel="z₂", xlim=(-2.6, 2.6), ylim=(-2.6, 2.6))
    axes.legend(fontsize=8, loc="lower left", framealpha=0.95)
    return trace.numbers()


def draw_square(axes: Axes, trace: Trace) -> dict[str, Any]:
    contours(axes, corner, (0, 1), (0, 1), (0.2, 0.7, 1.6, 2.9))
    _draw_curve(axes, trace, SKY)
    plain(axes, "e  In the unit square: a line with reflections")
    axes.set(xlabel="z₁", ylabel="z₂", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.legend(fontsize=8, loc="best", framealpha=0.95)
    return trace.numbers()


def _draw_curve(axes: Axes, trace: Trace, color: str) -> None:
    """Draw the curve, the part of it above the height, what was tried and what became of it."""
    above = trace.curve.where(trace.curve_inside[:, None], torch.nan)
    axes.plot(*trace.curve.T, "--", color=color, linewidth=1)
    axes.plot(*above.T, "-", color=ORANGE, linewidth=3.5, alpha=0.8, label="on the slice")
    axes.plot(*trace.start, "s", color="white", markeredgecolor=DARK, markersize=8, zorder=5, label="start")
    for number, miss in enumerate(trace.misses, 1):
        axes.plot(*miss, "X", color=RED, markersize=9, zorder=5, label="miss" if number == 1 else None)
        axes.annotate(
            str(number),
            (float(miss[0]), float(miss[1])),
            (6, 4),
            textcoords="offset points",
            fontsize=9,
            color=RED,
        )
    axes.plot(*trace.end, "o", color=GREEN, markeredgecolor=DARK, markersize=9, zorder=6, label="new state")
