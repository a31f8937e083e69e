"""Whole runs from bad starts against NUTS and ChEES of peers: convergence, CPU time, ESS per gradient.

Every run is a process of its own with one thread, so that compilation counts as it does for a user; engines
take turns.  One record per run, then one per problem and one for all.  A run that takes longer than
--limit seconds is stopped and has not converged.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measuring import Record, quickly
from benchmarks.sampler_problems import PROBLEMS

PEERS = ("numpyro", "blackjax", "blackjax_chees")
AIMS = {"time_ratio": "at most 0.5", "ess_per_gradient_ratio": "at least 1.4", "converged": "15 of 17"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problems", nargs="*", choices=PROBLEMS, metavar="PROBLEM", help="default: all")
    parser.add_argument("--peers", nargs="*", default=["numpyro"], choices=PEERS, help="default: numpyro")
    parser.add_argument("--repeats", type=int, default=3, help="seeds; default: %(default)s")
    parser.add_argument("--peer-repeats", type=int, metavar="N", help="seeds of the peers; default: as many")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds; default: %(default)s")
    parser.add_argument("--known", type=Path, metavar="FILE", help="do not repeat the peers' runs in FILE")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PATH", help="that has the peers")
    quickly(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    known = _known(args.known)
    names = ["scaled_regression"] if args.quick else args.problems or list(PROBLEMS)
    summaries = []
    for name in names:
        runs: dict[str, list[Record]] = {engine: [] for engine in ("hmcvi", *args.peers)}
        for seed in range(args.repeats):
            for engine, found in runs.items():
                python = args.peer_python if engine in PEERS else sys.executable
                run_before = known.get((name, engine, seed))
                if engine in PEERS and not run_before and seed >= (args.peer_repeats or args.repeats):
                    continue
                found.append(run_before or _one(python, engine, name, seed, args.limit))
                yield {"problem": name, "engine": engine, "seed": seed, **found[-1]}
        summaries.append(_summary(name, runs))
        yield summaries[-1]
    yield _total(summaries, ("hmcvi", *args.peers))


def _known(path: Path | None) -> dict[tuple[str, str, int], Record]:
    """Runs of peers in a file of records."""
    records = [] if path is None else [json.loads(line) for line in path.read_text().splitlines()]
    return {
        (record["problem"], record["engine"], record["seed"]): {
            name: value
            for name, value in record.items()
            if name not in ("benchmark", "problem", "engine", "seed")
        }
        for record in records
        if record.get("engine") in PEERS
    }


def _one(python: str, engine: str, name: str, seed: int, limit: float) -> Record:
    command = [python, "-m", "benchmarks.sampler_engines", engine, name, str(seed)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
    except subprocess.TimeoutExpired:
        return {"converged": False, "said": f"stopped after {limit:g} s"}
    except subprocess.CalledProcessError as error:
        return {"converged": False, "said": (error.stderr.strip().splitlines() or ["failed"])[-1]}
    record: Record = json.loads(answer.stdout.splitlines()[-1])
    return record


def _summary(name: str, runs: dict[str, list[Record]]) -> Record:
    """Of one problem: how many runs converged, and medians over those that did.

    Times are compared to those of the fastest peer, draws per gradient to NumPyro's.
    """
    row: Record = {"problem": name, "held_out": PROBLEMS[name]().held_out}
    times, rates = {}, {}
    for engine, records in runs.items():
        good = [record for record in records if record["converged"]]
        row[engine] = f"{len(good)} of {len(records)}"
        if good:
            times[engine] = statistics.median(record["cpu_seconds_to_1000"] for record in good)
            rates[engine] = statistics.median(record["ess"] / record["gradients"] for record in good)
            row[f"{engine}_seconds"] = times[engine]
            row[f"{engine}_ess_per_1000_gradients"] = round(1000 * rates[engine], 1)
    row["silent"] = sum(not record["converged"] and not record.get("said") for record in runs["hmcvi"])
    peers = times.keys() - {"hmcvi"}
    if "hmcvi" in times and peers:
        row["time_ratio"] = round(times["hmcvi"] / min(times[peer] for peer in peers), 3)
    if "hmcvi" in rates and "numpyro" in rates:
        row["ess_per_gradient_ratio"] = round(rates["hmcvi"] / rates["numpyro"], 2)
    return row


def _total(rows: list[Record], engines: tuple[str, ...]) -> Record:
    """A problem counts as converged where most of its runs have."""
    total: Record = {"problems": len(rows), "aims": AIMS}
    for engine in engines:
        counts = [tuple(map(int, row[engine].split(" of "))) for row in rows]
        total[f"{engine}_converged"] = sum(2 * good > runs for good, runs in counts)
        total[f"{engine}_runs"] = f"{sum(good for good, _ in counts)} of {sum(runs for _, runs in counts)}"
    total["silent"] = sum(row["silent"] for row in rows)
    for name in ("time_ratio", "ess_per_gradient_ratio"):
        if values := [row[name] for row in rows if name in row]:
            total[name] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return total
