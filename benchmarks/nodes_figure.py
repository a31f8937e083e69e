"""The figure of the simulation of many nodes: speed-up of training against the number of nodes."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.measuring import Record
from experiments.report import BLUE, DARK, GREEN, GREY, ORANGE

COLOURS = (BLUE, ORANGE, GREEN)
STYLES = {"loopback": ("-", "measured between processes"), "ethernet": ("--", "assumed 1 Gbit/s, 50 µs")}


def draw(result: Record, path: Path) -> None:
    nodes = result["nodes"]
    cases = {name: row for name, row in result.items() if isinstance(row, dict) and "speed_up" in row}
    figure = Figure(figsize=(9.2, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True)
    for colour, (case, row) in zip(COLOURS, cases.items(), strict=True):
        for network, (style, label) in STYLES.items():
            name = f"{case}, {label}"
            left.loglog(nodes, row["speed_up"][network], style, color=colour, marker="o", ms=3.5, label=name)
        right.loglog(
            nodes, row["compute_ms"], "-", color=colour, marker="o", ms=3.5, label=f"{case}, compute"
        )
        step = row["step_ms"]["ethernet"]
        right.loglog(nodes, step, "--", color=colour, marker="o", ms=3.5, label=f"{case}, with 1 Gbit/s")
    left.loglog(nodes, nodes, color=GREY, lw=1, label="ideal")
    left.set_yticks(nodes, [str(count) for count in nodes])
    left.yaxis.set_minor_locator(NullLocator())
    left.set_title("Speed-up of training, simulated", loc="left", fontsize=11, color=DARK)
    right.set_title("Milliseconds of a step", loc="left", fontsize=11, color=DARK)
    for axes in (left, right):
        axes.set_xlabel("nodes, one thread each", fontsize=10)
        axes.set_xticks(nodes, [str(count) for count in nodes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(color=GREY, alpha=0.3, lw=0.5)
        axes.tick_params(labelsize=9)
        axes.legend(fontsize=7.5, frameon=False, handlelength=3.5)
    figure.savefig(path, dpi=110)
