"""The figures: effective samples against the number of categories, errors against work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.report import BLUE, GREY, ORANGE, RED, canvas, save_figure, title
from experiments.simplex.targets import CONCENTRATIONS, TRANSFORMS

STYLES = dict(zip((t.name for t in TRANSFORMS), ((BLUE, "o"), (ORANGE, "s"), (RED, "^")), strict=True))


def draw_efficiency(records: list[dict[str, Any]], quantity: str, label: str, path: Path) -> None:
    size = (3.1 * len(CONCENTRATIONS), 3.4)
    figure, panels = canvas(1, len(CONCENTRATIONS), size, sharey=True)
    for axes, target in zip(panels[0], CONCENTRATIONS, strict=True):
        for name, (color, marker) in STYLES.items():
            runs = [r for r in records if (r["target"], r["transform"]) == (target, name)]
            sizes, values = [r["size"] for r in runs], [r[quantity] for r in runs]
            axes.loglog(sizes, values, color=color, marker=marker, label=name)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_title(target, loc="left")
        axes.set_xlabel("categories K")
        axes.grid(axis="y", color=GREY, alpha=0.3)
    panels[0][0].set_ylabel(label)
    panels[0][-1].legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def draw_errors(records: list[dict[str, Any]], path: Path) -> None:
    sizes = sorted({record["size"] for record in records})
    inches = (3.1 * len(CONCENTRATIONS), 2.6 * len(sizes))
    figure, panels = canvas(len(sizes), len(CONCENTRATIONS), inches, sharey=True)
    for row, size in zip(panels, sizes, strict=True):
        for axes, target in zip(row, CONCENTRATIONS, strict=True):
            for record in records:
                if (record["target"], record["size"]) == (target, size):
                    color, _ = STYLES[record["transform"]]
                    axes.loglog(record["leapfrogs"], record["rmse"], color=color, label=record["transform"])
            title(axes, f"{target}, K = {size}")
            axes.grid(color=GREY, alpha=0.3)
        row[0].set_ylabel("RMSE of means / sd")
    for axes in panels[-1]:
        axes.set_xlabel("leapfrog steps of a chain")
    panels[0][0].legend(frameon=False, fontsize=8)
    save_figure(figure, path)
