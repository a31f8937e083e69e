"""Our figures beside the paper's: as Markdown and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmcvi.experiments.table1.canvas import canvas
from hmcvi.experiments.table1.rows import PUBLISHED

Results = Mapping[str, Mapping[str, Any]]


def markdown(results: Results) -> str:
    """One line per row of the paper, and per row of ours; nats per image, lower is better."""
    lines = [
        "| row | −bound, paper | −bound, ours | NLL, paper | NLL, ours | ESS of S | epochs | CPU min |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(row, results.get(row)) for row in [*PUBLISHED, *(r for r in results if r not in PUBLISHED)]),
    ]
    return "\n".join(lines)


def _line(row: str, result: Mapping[str, Any] | None) -> str:
    paper = [f"{value:.2f}" for value in PUBLISHED[row]] if row in PUBLISHED else ["–", "–"]
    if result is None:
        return f"| {row} | {paper[0]} | | {paper[1]} | | | | |"
    has_nll = result["nll"] is not None
    cells = [
        row,
        paper[0],
        f"{-result['bound']:.2f} ± {result['bound_se']:.2f}",
        paper[1],
        f"{result['nll']:.2f} ± {result['nll_se']:.2f}" if has_nll else "–",
        f"{result['nll_ess']:.0f} of {result['nll_samples']}" if has_nll else "–",
        f"{result['epochs']}",
        f"{result['cpu_seconds'] / 60:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def plot(results: Results, path: Path) -> None:
    """−bound and NLL of each row, the paper's and ours, one panel for each size of the latent space."""
    sizes = {"2 latents": list(PUBLISHED)[:11], "20 latents": list(PUBLISHED)[11:]}
    figure, panels = canvas(1, 2, side=5.0)
    for panel, (title, rows) in zip(panels, sizes.items(), strict=True):
        ours = {place: results[row] for place, row in enumerate(rows) if row in results}
        for name, colour in (("bound", "tab:blue"), ("nll", "tab:red")):
            label = {"bound": "−bound", "nll": "NLL"}[name]
            published = [getattr(PUBLISHED[row], name) for row in rows]
            panel.plot(published, "o", mfc="none", color=colour, label=f"{label}, paper")
            known = {place: abs(result[name]) for place, result in ours.items() if result[name] is not None}
            panel.plot([*known], [*known.values()], "o", color=colour, label=f"{label}, ours")
        panel.set_xticks(range(len(rows)), [row.removeprefix("hmcvi-") for row in rows], rotation=60)
        panel.set(title=title, ylabel="nats per image")
        panel.grid(alpha=0.3)
    panels[1].legend()
    figure.savefig(path, dpi=100)
