"""Annealed importance sampling of a decoder posterior against BlackJAX, NumPyro and matrix products.

A decoder 20–200–200–784 with random weights and ten images, a hundred chains each.  Every engine goes the
same geometric path from prior to posterior over the same temperatures, with one HMC transition of ten
leapfrogs at each, one step size for all, and nothing adapted; no engine computes a force twice.  BlackJAX and
NumPyro have no annealed importance sampling: it is written by hand around their HMC, all temperatures of all
chains in one compiled program.  The limit is the time of the products that all forces need, one forward and
one backward for each layer, at the speed of a square matrix product measured before and after each run.  One
record: seconds, ratios, the share of matmul speed, and whether all engines find the same log Z.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.kernel_targets import HIDDEN, LATENT, LEAPFROGS, PIXELS
from benchmarks.measuring import Record, quickly, ratios, repeatable, spread, take_turns
from benchmarks.workers import Worker, add_peer_python, idle_cores, worker

OURS, PEERS = ("compiled", "eager"), ("blackjax", "numpyro")
AIMS = {"compiled": 0.75}  # of matmul speed
FORCE = 2 * (LATENT * HIDDEN + HIDDEN * HIDDEN + HIDDEN * PIXELS)  # multiply-adds of a chain
AGREEMENT = 4.0  # standard errors of a difference of log Z


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engines",
        type=lambda text: text.split(","),
        default=[*OURS, *PEERS],
        metavar="NAME,NAME",
        help=f"of {', '.join([*OURS, *PEERS])}",
    )
    parser.add_argument("--temperatures", type=int, default=100, metavar="K")
    repeatable(parser, 5)
    add_peer_python(parser)
    quickly(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    if unknown := set(args.engines) - {*OURS, *PEERS}:
        raise SystemExit(f"no engine {', '.join(sorted(unknown))}; there are {', '.join([*OURS, *PEERS])}")
    temperatures, chains = (5, 20) if args.quick else (args.temperatures, 1000)
    cores = idle_cores(args.threads)
    with ExitStack() as stack:
        engines = {}
        for name in args.engines:
            python = sys.executable if name in OURS else args.peer_python
            if python is not None:
                engine = worker("annealing_engines", name, temperatures, chains, cores=cores, python=python)
                engines[name] = stack.enter_context(engine)
        runs = take_turns({name: engine.ask for name, engine in engines.items()}, args.repeats)
    sizes = {"chains": chains, "temperatures": temperatures, "leapfrogs": LEAPFROGS}
    multiply_adds = FORCE * chains * ((temperatures - 1) * LEAPFROGS + 1)
    yield {**sizes, "threads": args.threads, "repeats": args.repeats, **record(engines, runs, multiply_adds)}


def record(engines: dict[str, Worker], runs: dict[str, list[Record]], multiply_adds: int) -> Record:
    times = {name: [run["seconds"] for run in own] for name, own in runs.items()}
    # the peers' interpreter need not have torch: what ours measured in the same round holds for all
    clocks = [run["multiply_add_seconds"] for name in runs if name in OURS for run in runs[name]]
    limits = {
        name: [multiply_adds * run["multiply_add_seconds"] for run in own]
        for name, own in runs.items()
        if name in OURS
    }
    versions: dict[str, str] = {}
    for engine in engines.values():
        versions |= engine.start["versions"]
    return {
        "seconds": {name: spread(values, 3) for name, values in times.items()},
        "speed_over_peer": {
            f"{ours}/{peer}": spread(ratios(times[peer], times[ours]))
            for ours in OURS
            for peer in PEERS
            if ours in times and peer in times
        },
        "share_of_matmul_speed": {
            name: spread(ratios(own, times[name]), at_least=AIMS.get(name)) for name, own in limits.items()
        },
        "matmul_gflops": spread([2e-9 / clock for clock in clocks], 1) if clocks else None,
        **agreement(runs),
        "first_call_s": {name: engine.start["first_call_s"] for name, engine in engines.items()},
        "others": round(max(run["others"] for own in runs.values() for run in own), 2),
        "versions": versions,
    }


def agreement(runs: dict[str, list[Record]]) -> Record:
    """log Z of all images together, by engine the mean over its runs; the largest difference in errors."""
    means = {name: statistics.mean(run["log_z"] for run in own) for name, own in runs.items()}
    errors = {
        name: math.sqrt(sum(run["std_error"] ** 2 for run in own)) / len(own) for name, own in runs.items()
    }
    names = list(runs)
    largest = max(
        (abs(means[a] - means[b]) / math.hypot(errors[a], errors[b]) for a in names for b in names if a < b),
        default=0.0,
    )
    return {
        "log_z": {name: [round(means[name], 3), round(errors[name], 3)] for name in names},
        "log_z_differs_by_errors": round(largest, 2),
        "log_z_agrees": largest < AGREEMENT,
        "smallest_ess": round(min(run["ess"] for own in runs.values() for run in own), 1),
        "acceptance": {
            name: round(statistics.mean(run["acceptance"] for run in own), 4) for name, own in runs.items()
        },
    }
