"""Steady speed of tuned samplers on cheap posteriors: ESS per CPU second, and what an eager step costs.

64 chains that are tuned and compiled already, one thread; NumPyro's NUTS, BlackJAX's NUTS and ChEES in turns
with this library.  One record per posterior.  `eager_cost` is the CPU time of uncompiled HMC of ten steps per
gradient over that of a bare call of autograd, with a diagonal and with a full mass: by recorded operations,
as in a run, and without them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks.measuring import Record, quickly, ratios, set_threads, spread, take_turns
from benchmarks.sampler_problems import PROBLEMS, reference
from benchmarks.workers import add_peer_python, idle_cores, worker

CHEAP = (
    "eight_schools",
    "kidiq",
    "scaled_regression",
    "separated_logistic",
    "poisson_regression",
    "noncentred_hierarchy",
)
OURS, PEERS = ("hmcvi_compiled", "hmcvi_eager"), ("numpyro", "blackjax_nuts", "blackjax_chees")
CHAINS, STEPS, REPEATS = 64, 10, 40


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problems", nargs="*", choices=PROBLEMS, metavar="PROBLEM", help="default: cheap")
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    add_peer_python(parser)
    quickly(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    set_threads(1)
    for name in ["scaled_regression"] if args.quick else args.problems or CHEAP:
        row: Record = {"problem": name, "chains": CHAINS, "repeats": args.repeats}
        if args.peer_python is not None:
            row |= steady(name, args.repeats, args.peer_python)
        yield row | {"eager_cost": eager_cost(name, args.repeats)}


def steady(name: str, repeats: int, peer_python: str) -> Record:
    """All engines, tuned and then in turns."""
    cores = idle_cores(1)
    with ExitStack() as stack:
        engines = {}
        for engine in (*OURS, *PEERS):
            python = sys.executable if engine in OURS else peer_python
            process = worker("steady_engines", engine, name, cores=cores, python=python)
            engines[engine] = stack.enter_context(process)
        runs = take_turns({engine: process.ask for engine, process in engines.items()}, repeats)
    speeds = {engine: [run["ess_per_s"] for run in own] for engine, own in runs.items()}
    best = [max(values) for values in zip(*(speeds[peer] for peer in PEERS), strict=True)]
    return {
        "ess_per_s": {engine: spread(values, 0) for engine, values in speeds.items()},
        "ess_per_1000_gradients": {
            engine: spread((1000 * run["ess_per_gradient"] for run in own), 1) for engine, own in runs.items()
        },
        "microseconds_per_transition": {
            engine: spread((run["microseconds"] for run in own), 0) for engine, own in runs.items()
        },
        "over_chees": spread(ratios(speeds["hmcvi_compiled"], speeds["blackjax_chees"]), at_least=1),
        "over_best": spread(ratios(speeds["hmcvi_compiled"], best), at_least=1),
        "transitions": {engine: process.start["transitions"] for engine, process in engines.items()},
    }


def eager_cost(name: str, repeats: int) -> Record:
    import torch

    import hmcvi
    from hmcvi.kernels import HMC, CholeskyMetric, DiagonalMetric
    from hmcvi.sampling.replayed import replayed

    torch.set_num_threads(1)
    problem = PROBLEMS[name]()
    moments = {key: torch.from_numpy(value) for key, value in reference(name, problem).items()}
    log_prob = problem.make(torch)
    position = moments["mean"] + moments["sd"] * torch.randn(CHAINS, problem.dim, dtype=torch.float64)

    def bare() -> None:
        for _ in range(STEPS):
            z = position.detach().requires_grad_()
            torch.autograd.grad(log_prob(z).sum(), z)

    given = hmcvi.Density(log_prob)
    recorded = replayed(given, position)

    def transition(density: hmcvi.Density, metric: hmcvi.kernels.Metric) -> Callable[[], object]:
        kernel = HMC(density, 1e-3, STEPS, metric, compile=False)
        state = kernel.init(position)
        return lambda: kernel.step(state)

    def clocked(work: Callable[[], object]) -> Callable[[], float]:
        def measured() -> float:
            began = time.process_time()
            for _ in range(REPEATS):
                work()
            return time.process_time() - began

        measured()
        return measured

    masses = {
        "diagonal": DiagonalMetric(-moments["sd"].log()),
        "full": CholeskyMetric(torch.diag(1 / moments["sd"])),
    }
    works = {"bare": clocked(bare)}
    for mass, metric in masses.items():
        works[mass] = clocked(transition(recorded, metric))
        works[f"{mass}_unrecorded"] = clocked(transition(given, metric))
    times = take_turns(works, repeats)
    return {
        name: spread(ratios(times[name], times["bare"]), at_most=1.15) for name in works if name != "bare"
    }
