"""The figure of the scaling benchmark: time above, memory below, one column for each quantity."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.measuring import Record
from benchmarks.scaling import FLOOR, PANELS
from experiments.report import BLUE, DARK, GREEN, GREY, ORANGE

COLOURS = (BLUE, ORANGE, GREEN)
MARKERS = ("o", "s", "^")
HEADROOM = 15.0  # for the legends


def draw(curves: dict[str, dict[str, Record]], path: Path) -> None:
    figure = Figure(figsize=(3.1 * len(PANELS), 6.4), layout="constrained")
    times, memories = figure.subplots(2, len(PANELS), sharex="col", sharey="row")
    for above, below, (name, panel) in zip(times, memories, PANELS.items(), strict=True):
        _lines(above, curves[name], "seconds", "time_exponent", least=0.0)
        _lines(below, curves[name], "mib", "memory_exponent", least=FLOOR)
        above.set_title(panel.title, loc="left", fontsize=11, color=DARK)
        below.set_xlabel(panel.label, fontsize=10)
        sizes = next(iter(curves[name].values()))["sizes"]
        below.set_xticks(sizes, [_short(size) for size in sizes])
        below.xaxis.set_minor_locator(NullLocator())
    for row, label in ((times, "processor seconds"), (memories, "MiB beyond the smallest size")):
        row[0].set_ylabel(label, fontsize=10)
        row[0].set_ylim(top=row[0].get_ylim()[1] * HEADROOM)
    figure.savefig(path, dpi=110)


def _lines(axes: Axes, lines: dict[str, Record], key: str, slope: str, least: float) -> None:
    for colour, marker, (line, own) in zip(COLOURS, MARKERS, lines.items(), strict=False):
        values = [max(value, least) for value in own[key]]
        power = "" if own[slope] is None else f"  n$^{{{own[slope]:.2f}}}$"
        axes.loglog(own["sizes"], values, color=colour, marker=marker, ms=4, lw=1.5, label=f"{line}{power}")
    axes.grid(color=GREY, alpha=0.3, lw=0.5)
    axes.legend(fontsize=9, loc="upper left", frameon=False)
    axes.tick_params(labelsize=9)


def _short(size: int) -> str:
    return f"{size // 1000}k" if size >= 1000 else str(size)
