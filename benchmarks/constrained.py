"""Constrained HMC of this library against mici's: effective draws per second.

Items: lotka_volterra, generalised_lambda, all.  mici runs one chain on each core, its functions compiled by
hand, we a batch of chains on each core, one thread each; the engines take turns.  Model, data, step size,
numbers of steps and starting law are the same.  ESS is that of the slowest of the four parameters over all
chains and turns, at most one per transition (of few draws per chain it is not known better), per second of
the wall clock and per second of the processor; the ratio is of the second, which other processes disturb
less.  Without `enough_draws` ESS and R-hat say little; dynamics being the same, `ratios_of_transitions` needs
neither, and an aim is reached if both ratios reach it.  How a transition grows with the number of data is
measured by `scaling`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from benchmarks.measuring import Record, ratios, spread
from benchmarks.workers import add_peer_python, worker

AIMS = {"lotka_volterra": 20.0, "generalised_lambda": 10.0}
PEERS = {"lotka_volterra": ("mici",), "generalised_lambda": ("mici", "mici_structured")}
ENOUGH = 50  # draws of a chain for its ESS and R-hat to mean something
COST = "ms_per_transition_of_a_chain"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("item", nargs="?", default="all", choices=[*AIMS, "all"])
    parser.add_argument(
        "--chains",
        type=lambda text: [int(n) for n in text.split(",")],
        default=[64, 256, 1024],
        metavar="N,N",
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each turn")
    add_peer_python(parser)


class Engine:
    """One worker of `constrained_engines` on each core."""

    def __init__(self, name: str, model: str, chains: int, python: str, stack: ExitStack) -> None:
        self.answers: list[list[Record]] = []
        cores = sorted(os.sched_getaffinity(0))
        starting = [
            worker("constrained_engines", name, model, chains, core, cores=[core], python=python)
            for core in cores
        ]
        self.workers = [stack.enter_context(one) for one in starting]
        stack.callback(self.forget)

    def run(self, seconds: float) -> None:
        for one in self.workers:
            one.begin(seconds)
        self.answers.append([one.end() for one in self.workers])

    def costs(self) -> list[float]:
        """Seconds of the processor per transition of a chain, turn by turn."""
        return [
            sum(answer["cpu_seconds"] for answer in answers)
            / sum(np.load(answer["draws"])[..., 0].size for answer in answers)
            for answers in self.answers
        ]

    def forget(self) -> None:
        for answer in (answer for answers in self.answers for answer in answers):
            os.unlink(answer["draws"])

    def draws(self) -> np.ndarray:
        """[chains of all cores, draws of all turns, 4], every chain cut to the shortest"""
        paths = []
        for answers in zip(*self.answers, strict=True):
            paths.append(np.concatenate([np.load(answer["draws"]) for answer in answers], 1))
        shortest = min(path.shape[1] for path in paths)
        return np.concatenate([path[:, :shortest] for path in paths])

    def report(self) -> Record:
        import arviz

        draws = self.draws()
        flat = [answer for answers in self.answers for answer in answers]
        wall = sum(max(answer["seconds"] for answer in answers) for answers in self.answers)
        used = sum(answer["cpu_seconds"] for answer in flat)
        columns = range(draws.shape[-1])
        ess = min(draws[..., 0].size, *(float(arviz.ess(draws[..., i])) for i in columns))
        return {
            "chains": draws.shape[0],
            "draws": draws.shape[1],
            "enough_draws": draws.shape[1] >= ENOUGH,
            "acceptance": round(float(np.mean([answer["acceptance"] for answer in flat])), 3),
            COST: round(1e3 * used / draws[..., 0].size, 3),
            "ess": round(ess, 1),
            "ess_per_second": round(ess / wall, 2),
            "ess_per_cpu_second": round(ess / used, 3),
            "r_hat": round(max(float(arviz.rhat(draws[..., i])) for i in columns), 4),
            "mean": [round(float(value), 4) for value in draws.mean((0, 1))],
            "sd": [round(float(value), 4) for value in draws.std((0, 1))],
            "first_call_s": self.workers[0].start["first_call_s"],
        }


def compare(model: str, args: argparse.Namespace) -> Record:
    """All engines, ours with every number of chains, one after the other, `rounds` times."""
    peers = PEERS[model] if args.peer_python is not None else ()
    with ExitStack() as stack:
        engines = {name: Engine(name, model, 1, args.peer_python, stack) for name in peers}
        for chains in args.chains:
            engines[f"hmcvi, {chains} chains"] = Engine("hmcvi", model, chains, sys.executable, stack)
        for _ in range(args.rounds):
            for engine in engines.values():
                engine.run(args.seconds)
        reports = {name: engine.report() for name, engine in engines.items()}
        costs = {name: engine.costs() for name, engine in engines.items()}
    best = max(reports.keys() - set(peers), key=lambda name: reports[name]["ess_per_cpu_second"])
    aim = AIMS[model]
    gains = {
        name: reports[best]["ess_per_cpu_second"] / reports[name]["ess_per_cpu_second"] for name in peers
    }
    walls = {name: reports[best]["ess_per_second"] / reports[name]["ess_per_second"] for name in peers}
    steps = {name: spread(ratios(costs[name], costs[best]), at_least=aim) for name in peers}
    return {
        "model": model,
        "engines": reports,
        "best": best,
        "ratios": {name: round(value, 1) for name, value in gains.items()},
        "ratios_of_wall_clock": {name: round(value, 1) for name, value in walls.items()},
        "ratios_of_transitions": steps,
        "aim": aim,
        "reached": {name: gains[name] >= aim and steps[name]["reached"] for name in peers},
    }


def run(args: argparse.Namespace) -> Iterator[Record]:
    for model in AIMS:
        if args.item in (model, "all"):
            yield compare(model, args)
