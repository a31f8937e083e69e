"""Train and evaluate rows one after another, as far as the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.table1.rows import portable, read_results, row_config
from experiments.table1.weights import has_weights, result_of_weights
from hmcvi.internal.processes import ALONE, Processes
from hmcvi.internal.storage import save_json
from hmcvi.training import InterruptGuard, Run


def train_rows(
    rows: Sequence[str],
    out: Path,
    guard: InterruptGuard,
    overrides: Sequence[str] = (),
    processes: Processes = ALONE,
) -> None:
    """Write out/row.json for every row.  A finished row is left alone, a begun one goes on."""
    work = {row: _work(asdict(row_config(row, out, overrides))) for row in rows}
    for number, row in enumerate(rows, 1):
        finished = read_results(out)
        if row in finished:
            print(f"row {number} of {len(rows)}: {row} is finished", flush=True)
            continue
        left = sum(work[row] for row in rows if row not in finished)
        print(f"row {number} of {len(rows)}: {row}, {_time(left, finished)}", flush=True)
        train_row(row, out, guard, overrides, processes)
        processes.wait()


def train_row(
    row: str, out: Path, guard: InterruptGuard, overrides: Sequence[str] = (), processes: Processes = ALONE
) -> None:
    """Train (or go on training) one row, evaluate it, write its result.  Weights alone are only evaluated."""
    if processes.broadcast((out / row / "checkpoint.pt").exists()):
        result = _trained(row, Run.resume(out / row, overrides, processes), guard)
    elif processes.broadcast(has_weights(row, out)):
        result = result_of_weights(row, out, guard, overrides, processes)
    else:
        result = _trained(row, Run.create(row_config(row, out, overrides), processes), guard)
    if processes.first:
        save_json(result, out / f"{row}.json")


def _trained(row: str, run: Run, guard: InterruptGuard) -> dict[str, Any]:
    return {"row": row, **run.train(guard)["stages"][-1], "config": portable(run.config)}


def _work(config: Mapping[str, Any]) -> float:
    """Of training, in passes of the plain VAE over the data; a force costs about as much as a pass."""
    chain, passes = config["chain"], config["train"]["epochs"] * config["objective"]["num_samples"]
    return passes if chain["kind"] == "none" else passes * (1 + chain["num_hmc"] * chain["num_leapfrog"])


def _time(work: float, finished: Mapping[str, Mapping[str, Any]]) -> str:
    """How long `work` takes if it goes as it went for the finished rows."""
    known = [result for result in finished.values() if result["cpu_seconds"] is not None]
    done = sum(_work(result["config"]) for result in known)
    if not done:
        return "the first one: the time left is not known yet"
    minutes = work * sum(result["cpu_seconds"] for result in known) / done / 60
    return f"about {minutes / 60:.1f} h of training left in all"
