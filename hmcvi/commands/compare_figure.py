"""A picture of compared runs: their bounds and likelihoods, and gains over the first with paired errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hmcvi.training import ConfigError
from hmcvi.training.compare_runs import ComparedRun


def draw_comparison(runs: Sequence[ComparedRun], path: Path) -> None:
    """Write the picture; its kind follows the suffix of the file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 1.4 + 0.42 * len(runs)), layout="constrained")
    figures, gains = figure.subplots(1, 2, sharey=True)
    places = list(range(len(runs)))
    for name, key, colour in (("bound", "bound", "C0"), ("−NLL", "nll", "C1")):
        sign = -1 if key == "nll" else 1
        shown = [
            (y, run.figures) for y, run in zip(places, runs, strict=True) if run.figures.get(key) is not None
        ]
        values, errors = [sign * f[key] for _, f in shown], [f[f"{key}_se"] for _, f in shown]
        figures.errorbar(
            values, [y for y, _ in shown], xerr=errors, fmt="o", color=colour, label=name, capsize=3
        )
    for name, key, colour in (("bound", "bound_gain", "C0"), ("likelihood", "likelihood_gain", "C1")):
        paired = [(y, run.gains) for y, run in zip(places, runs, strict=True) if key in run.gains]
        values, errors = [g[key] for _, g in paired], [g[f"{key}_se"] for _, g in paired]
        gains.errorbar(
            values, [y for y, _ in paired], xerr=errors, fmt="o", color=colour, label=name, capsize=3
        )
    figures.set(yticks=places, yticklabels=[run.folder.name for run in runs], xlabel="nats per test image")
    figures.invert_yaxis()
    gains.axvline(0, color="0.6", linewidth=1)
    gains.set(xlabel=f"gain over {runs[0].folder.name}, paired")
    figures.legend(frameon=False)
    gains.legend(frameon=False)
    try:
        figure.savefig(path, dpi=200)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot draw {path}: {error}") from None
