"""The figure: ELBO of every method, beside what its authors' code gives, below the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.langevin.methods import AUTHORS_CODE, METHODS
from experiments.report import BLUE, DARK, GREY, ORANGE, canvas, save_figure, title


def draw(records: list[dict[str, Any]], path: Path) -> None:
    figure, panels = canvas(1, len(AUTHORS_CODE), (4.2 * len(AUTHORS_CODE), 3.4), sharey=True, sharex=True)
    log_evidence = min(records, key=lambda r: r["log_evidence_error"])["log_evidence"]
    for axes, (num_bridges, authors_code) in zip(panels[0], AUTHORS_CODE.items(), strict=True):
        runs = {r["method"]: r for r in records if r["bridges"] == num_bridges}
        names = list(METHODS)[::-1]
        axes.axvline(log_evidence, color=DARK, lw=0.8, ls="--", label="log evidence")
        axes.plot([runs[name]["elbo"] for name in names], names, "o", color=BLUE, label="here")
        axes.plot(
            list(authors_code.values()), list(authors_code), "|", color=ORANGE, ms=12, label="authors' code"
        )
        axes.set_xlabel("ELBO")
        axes.grid(axis="y", color=GREY, alpha=0.3)
        title(axes, f"K = {num_bridges}")
    panels[0][0].legend(frameon=False, fontsize=8, loc="lower left")
    save_figure(figure, path)
