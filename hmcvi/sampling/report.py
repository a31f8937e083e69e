"""One page about a run: traces, ranks, pairs and energies of what mixed worst."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hmcvi.sampling.convergence import bulk_ess, quantile, rhat, tail_ess
from hmcvi.sampling.diagnostics import worst_entries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

SHOWN = 4  # entries, those with the largest R-hat
LINES = 8  # chains drawn by themselves; of more, groups of chains share a line in the plot of ranks
POINTS = 1000  # of a trace
DOTS = 2000  # of a plot of pairs
BINS = 20
WIDTH, ROW, LINE = 13.0, 1.9, 0.24  # inches
LETTERS = 150  # in a line
GREY, DARK, DIVERGED = "0.75", "0.25", "tab:red"


class Entry(NamedTuple):
    """One number of the state."""

    name: str
    values: Tensor  # [chains, draws]


def report_figure(
    variables: Mapping[str, Tensor], stats: Mapping[str, Tensor], problems: Sequence[str]
) -> Figure:
    """variables: {name: [chains, draws, *shape]}; stats: {name: [chains, draws]}; problems: in words."""
    from matplotlib.figure import Figure

    entries = [Entry(name, values) for name, values in worst_entries(variables, SHOWN)]
    rows = max(2, len(entries))
    lines = _header(variables, len(entries), problems)
    header = LINE * (len(lines) + 1)
    figure = Figure(figsize=(WIDTH, header + ROW * rows), layout="constrained")
    grid = figure.add_gridspec(3, 2, height_ratios=[header, ROW * (rows - 1), ROW], width_ratios=[1.25, 1])
    _write(figure.add_subfigure(grid[0, :]), lines, "tab:red" if problems else "tab:green")
    _draw_chains(figure.add_subfigure(grid[1:, 0]), entries, rows)
    _draw_pairs(figure.add_subfigure(grid[1, 1]), entries, stats.get("diverged"))
    bottom = figure.add_subfigure(grid[2, 1])
    if "energy" in stats and stats["energy"].shape[1] > 2:
        _draw_energy(bottom, stats["energy"].double().cpu())
    elif "log_prob" in stats:
        _draw_log_prob(bottom, stats["log_prob"].double().cpu())
    return figure


def _header(variables: Mapping[str, Tensor], shown: int, problems: Sequence[str]) -> list[str]:
    chains, draws = next(iter(variables.values())).shape[:2]
    count = sum(value[0, 0].numel() for value in variables.values())
    title = (
        f"{chains} chains of {draws} draws, {count} numbers each; shown: the {shown} with the largest R-hat"
    )
    found = [f"• {text}" for text in problems] or ["nothing found that speaks against these draws"]
    return [title, *(line for text in found for line in textwrap.wrap(text, LETTERS))]


def _write(figure: SubFigure, lines: Sequence[str], color: str) -> None:
    """A title, and what was found in colour."""
    for index, line in enumerate(lines):
        height = 1 - (index + 0.8) / (len(lines) + 1)
        if index == 0:
            figure.text(0.01, height, line, fontsize=11, weight="bold")
        else:
            figure.text(0.01, height, line, fontsize=9, color=color)


def _draw_chains(figure: SubFigure, entries: list[Entry], rows: int) -> None:
    """Traces of some chains, and the ranks of draws of every chain among those of all."""
    axes = figure.subplots(rows, 2, squeeze=False, width_ratios=[1.7, 1.0])
    for trace, ranks in axes[len(entries) :]:
        trace.set_axis_off()
        ranks.set_axis_off()
    for (trace, ranks), entry in zip(axes, entries, strict=False):
        every = -(-entry.values.shape[1] // POINTS)
        for chain in _some(entry.values, LINES):
            trace.plot(range(0, len(chain), every), chain[::every], lw=0.5, alpha=0.8)
        trace.set_title(f"{entry.name}: {_numbers(entry.values)}", fontsize=8, loc="left")
        _draw_ranks(ranks, entry.values)
        for axis in (trace, ranks):
            axis.tick_params(labelsize=7)
    axes[0, 1].set_title("ranks: flat if chains agree", fontsize=8, loc="left")
    axes[max(0, len(entries) - 1), 0].set_xlabel("draw", fontsize=7)


def _draw_ranks(axes: Axes, values: Tensor) -> None:
    """The share of a chain's draws in each twentieth of all draws, over what it would be if chains agreed."""
    chains, draws = values.shape
    ranks = values.flatten().argsort().argsort().view(chains, draws) / values.numel()
    groups = ranks.tensor_split(min(LINES, chains))
    for group in groups:
        share = torch.histc(group.double(), BINS, 0, 1) * BINS / group.numel()
        axes.stairs(share.numpy(), torch.linspace(0, 1, BINS + 1).numpy(), lw=0.8, alpha=0.8)
    axes.axhline(1.0, color=DARK, lw=0.8, ls=":")
    axes.set_ylim(0, max(2.0, axes.get_ylim()[1]))
    axes.set_xlim(0, 1)


def _draw_pairs(figure: SubFigure, entries: list[Entry], diverged: Tensor | None) -> None:
    """Every entry against every other, transitions that diverged marked where they ended."""
    size = max(1, len(entries) - 1)
    axes = figure.subplots(size, size, squeeze=False, sharex="col", sharey="row")
    flat = [entry.values.flatten() for entry in entries]
    every = -(-len(flat[0]) // DOTS) if flat else 1
    bad = None if diverged is None else diverged.flatten().cpu() > 0
    for row in range(size):
        for column in range(size):
            cell = axes[row, column]
            if column > row or len(entries) < 2:
                cell.set_axis_off()
                continue
            x, y = flat[column], flat[row + 1]
            cell.scatter(x[::every], y[::every], s=1.5, color="tab:blue", alpha=0.4, lw=0, rasterized=True)
            if bad is not None and bad.any():
                cell.scatter(x[bad][:DOTS], y[bad][:DOTS], s=5, color=DIVERGED, lw=0, zorder=3)
            cell.tick_params(labelsize=6)
            if row == size - 1:
                cell.set_xlabel(entries[column].name, fontsize=7)
            if column == 0:
                cell.set_ylabel(entries[row + 1].name, fontsize=7)
    if bad is not None and bad.any():
        figure.suptitle(f"{int(bad.sum())} transitions diverged (red)", fontsize=8, color=DIVERGED)


def _draw_energy(figure: SubFigure, energy: Tensor) -> None:
    """Energies and their changes: changes that are much narrower cannot cover the energies."""
    axes = figure.subplots()
    parts = (energy - energy.mean(1, keepdim=True)).flatten(), energy.diff(dim=1).flatten()
    centred, changes = (part[part.isfinite()] for part in parts)
    if not len(centred) or not len(changes):
        return
    limit = 1.1 * float(max(quantile(part.abs(), 0.998) for part in (centred, changes))) + 1e-9
    edges = torch.linspace(-limit, limit, BINS * 2 + 1)
    for values, label, fill, color in (
        (centred, "energy", True, GREY),
        (changes, "its change", False, "tab:blue"),
    ):
        share = torch.histc(values.clamp(-limit, limit), BINS * 2, -limit, limit) / len(values)
        axes.stairs(share.numpy(), edges.numpy(), fill=fill, color=color, label=label)
    axes.legend(fontsize=7, frameon=False)
    axes.set_yticks([])
    axes.tick_params(labelsize=7)
    axes.set_title("energy around its mean, and its change in a transition", fontsize=8, loc="left")


def _draw_log_prob(figure: SubFigure, log_prob: Tensor) -> None:
    axes = figure.subplots()
    every = -(-log_prob.shape[1] // POINTS)
    for chain in _some(log_prob, LINES):
        axes.plot(range(0, len(chain), every), chain[::every], lw=0.5, alpha=0.8)
    axes.tick_params(labelsize=7)
    axes.set_title("log density", fontsize=8, loc="left")


def _some(values: Tensor, count: int) -> Tensor:
    """Evenly spaced chains, `count` at most.  [chains, draws]"""
    return values[:: -(-len(values) // count)]


def _numbers(values: Tensor) -> str:
    """R-hat and effective draws in words, where there are enough draws to know."""
    chains, draws = values.shape
    if draws < 8 or chains * draws < 40:
        return f"{chains * draws} draws"
    bulk, tail = float(bulk_ess(values)), float(tail_ess(values))
    known = f"R-hat {float(rhat(values)):.3f}, " if chains > 1 else ""
    return f"{known}ESS {bulk:,.0f} bulk, {tail:,.0f} tail"
