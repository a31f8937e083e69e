"""The likelihood of rows by annealed importance sampling, from their stored weights.

The paper's estimate rests on a dozen effective samples of 5000 in 20 dimensions, is too high, and the more so
the further the posterior is from the Gaussian it samples from, which flatters refinement.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.table1.weights import score_row
from hmcvi.internal.processes import Processes
from hmcvi.internal.storage import save_json
from hmcvi.training import InterruptGuard

FOLDER = "ais"
SETTINGS = ("evaluate.nll=ais", "evaluate.num_draws=1", "evaluate.nll_draws=1", "evaluate.nll_samples=1")
KEPT = ("nll", "nll_se", "nll_ess", "num_images", "bound", "bound_se")


def anneal_rows(
    rows: Sequence[str],
    out: Path,
    guard: InterruptGuard,
    overrides: Sequence[str],
    processes: Processes,
) -> None:
    """Write out/ais/row.json for every row that has weights and no such file."""
    for row in rows:
        path = out / FOLDER / f"{row}.json"
        if path.exists():
            continue
        scores = score_row(row, out, guard, [*SETTINGS, *overrides], processes)
        if processes.first:
            path.parent.mkdir(exist_ok=True)
            scores.save(path.with_suffix(".pt"))
            save_json({"row": row, **{key: scores.summary[key] for key in KEPT}}, path)
