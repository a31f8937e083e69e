"""Our figures beside the paper's: as Markdown and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from experiments.report import BLUE, DARK, GREY, SKY, canvas, save_figure
from experiments.table1.rows import PUBLISHED, RESULTS, SIZES, TARGETS, row_config

Result = Mapping[str, Any]
Results = Mapping[str, Result]
NAMES = {"bound": "−bound", "nll": "NLL"}


def markdown(results: Results) -> str:
    """The table: one line per row of the paper; nats per image, lower is better.

    The NLL by the paper's estimate is beside the paper's, that by annealing before them.
    """
    figures = "−bound, paper | −bound, ours | NLL by AIS | NLL, paper | NLL by its estimate"
    lines = [
        f"| row | {figures} | target | ESS of S | draws for NLL | epochs | CPU min |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(_line(row, results.get(row)) for row in PUBLISHED),
    ]
    return "\n".join(lines)


def _line(row: str, result: Result | None) -> str:
    paper = [f"{value:.2f}" for value in PUBLISHED[row]]
    if result is None:
        return f"| {row} | {paper[0]} | | | {paper[1]} | | | | | | |"
    cells = [
        row, paper[0], figure_of(result, "bound"), annealed(result), paper[1], figure_of(result, "nll"),
        verdict(row, result),
        "–" if result["nll"] is None else f"{result['nll_ess']:.0f} of {result['nll_samples']}",
        "–" if result["nll"] is None else f"{result['nll_draws']}", *budget(result),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def figure_of(result: Result, quantity: str) -> str:
    """−bound or NLL with its standard error over images."""
    value = result[quantity]
    return "–" if value is None else f"{abs(value):.2f} ± {result[f'{quantity}_se']:.2f}"


def annealed(result: Result) -> str:
    """The NLL by annealed importance sampling with its standard error over images."""
    return figure_of(result["ais"], "nll") if "ais" in result else "–"


def budget(result: Result) -> list[str]:
    """Epochs and minutes of CPU time."""
    epochs, seconds = result["epochs"], result["cpu_seconds"]
    return ["–" if epochs is None else f"{epochs}", "–" if seconds is None else f"{seconds / 60:.0f}"]


def verdict(row: str, result: Result) -> str:
    """Say whether both figures, to the hundredth, are within the margin above the paper's, or how far off."""
    known = [name for name in NAMES if result[name] is not None]
    excess = {name: round(abs(result[name]) - getattr(TARGETS[row], name), 2) for name in known}
    if missed := [f"{NAMES[name]} {value:+.2f}" for name, value in excess.items() if value > 0]:
        return f"missed: {', '.join(missed)}"
    return "met" if len(known) == len(NAMES) else "met by −bound"


def plot(results: Results, path: Path) -> None:
    """Draw −bound and NLL of each row, the paper's and ours, a column for each size of the latent space.

    The error over images is nearly the same for all rows, which share their images: a band around ours of the
    plain VAE shows it once.  Bars are the error with these images, over binarisations and chains.
    """
    figure, panels = canvas(2, 2, (12, 9))
    for column, (size, rows) in zip(panels, SIZES.items(), strict=True):
        for panel, name in zip(column, NAMES, strict=True):
            _panel(panel, name, rows, results)
        column[0].set_title(f"{size} latents", loc="left")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    save_figure(figure, path)


def _panel(panel: Axes, name: str, rows: list[str], results: Results) -> None:
    places = range(len(rows))
    known = {p: results[r] for p, r in enumerate(rows) if r in results and results[r][name] is not None}
    targets, paper = ([getattr(table[row], name) for row in rows] for table in (TARGETS, PUBLISHED))
    panel.plot(targets, places, "|", color=GREY, ms=12, label="paper + margin")
    panel.plot(paper, places, "o", mfc="none", mec=DARK, ms=7, label="paper")
    values = [abs(result[name]) for result in known.values()]
    errors = [result.get(f"{name}_repeat_se") or 0.0 for result in known.values()]
    panel.errorbar(values, list(known), xerr=errors, fmt="o", color=BLUE, ms=5, capsize=3, label="ours")
    if 0 in known:
        centre, error = abs(known[0][name]), known[0][f"{name}_se"]
        panel.axvspan(
            centre - error, centre + error, color=SKY, alpha=0.25, lw=0, label="± error over images"
        )
    panel.set_yticks(places, [f"{row.removesuffix('-2d').removesuffix('-20d')}: {kind(row)}" for row in rows])
    panel.tick_params(axis="y", labelsize=8)
    panel.set_xlabel(f"{NAMES[name]}, nats per image")
    panel.invert_yaxis()
    panel.grid(alpha=0.3)


def kind(row: str) -> str:
    """What the chain of a row is made of, in words."""
    chain = row_config(row, RESULTS).chain
    if chain.kind == "none":
        return "no chain"
    parts = [f"{chain.num_hmc} × {chain.num_leapfrog}", "partial momenta" if chain.partial else ""]
    parts += ["" if chain.mass == "global" else f"mass {chain.mass}"]
    parts += [f"accept {chain.accept}" if chain.accept else ""]
    return ", ".join(part for part in parts if part)
