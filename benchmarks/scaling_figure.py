"""The figure of the scaling benchmark: time above, memory below, one column for each quantity."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.measuring import Record
from benchmarks.scaling import PANELS
from hmcvi.experiments.pictures import BLUE, DARK, GREEN, GREY, ORANGE

COLOURS = (BLUE, ORANGE, GREEN)
ROWS = {"seconds": ("seconds", "time_exponent"), "mib": ("MiB beyond the start", "memory_exponent")}
FLOOR = 0.1  # MiB: pages that were there before are not seen


def draw(curves: dict[str, dict[str, Record]], path: Path) -> None:
    figure = Figure(figsize=(3.1 * len(PANELS), 6.2), layout="constrained")
    grid = figure.subplots(len(ROWS), len(PANELS), sharex="col", sharey="row")
    for row, (key, (label, slope)) in zip(grid, ROWS.items(), strict=True):
        for axes, (name, panel) in zip(row, PANELS.items(), strict=True):
            for colour, (line, own) in zip(COLOURS, curves[name].items(), strict=False):
                values = [max(value, FLOOR) if key == "mib" else value for value in own[key]]
                power = "" if own[slope] is None else f", ∝ n^{own[slope]:.2f}"
                axes.loglog(own["sizes"], values, "o-", color=colour, ms=4, lw=1.5, label=f"{line}{power}")
            axes.grid(color=GREY, alpha=0.3, lw=0.5)
            axes.legend(fontsize=8, loc="upper left", frameon=False)
            axes.tick_params(labelsize=8)
            if key == "seconds":
                axes.set_title(f"{panel.title}: {panel.label}", loc="left", fontsize=10, color=DARK)
            else:
                axes.set_xlabel(panel.label, fontsize=9)
        row[0].set_ylabel(label, fontsize=9)
    figure.savefig(path, dpi=110)
