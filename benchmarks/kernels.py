"""HMC of this library against its peers: chain-leapfrogs per second, and the memory of `hmcvi.sample`.

Items: decoder, logistic, normal10, normal100, pyro, memory, all.  Every engine runs in a process of its own,
is compiled and warmed up, and then they take turns; a ratio is that of neighbouring runs.  Equal acceptance
rates show equal work: the same target, step size and number of leapfrogs.  One record per comparison;
`others` is the largest number of cores that other processes used meanwhile: far from 0, the line says little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks import kernel_memory
from benchmarks.kernel_targets import LEAPFROGS
from benchmarks.measuring import Record, ratios, spread, take_turns
from benchmarks.workers import Worker, add_peer_python, idle_cores, worker

SAME_ACCEPTANCE = 0.02


@dataclass(frozen=True)
class Item:
    """One comparison; `aims` are the least ratios {"ours/peer": number}."""

    target: str
    chains: int
    threads: int
    engines: tuple[str, ...]
    aims: dict[str, float] = field(default_factory=dict)


ONE_BY_ONE = ("hmcvi_compiled", "hmcvi_eager", "hmcvi_sample")
BF16 = "hmcvi_bf16"  # compiled, moved by forces in bfloat16
OURS = (*ONE_BY_ONE, BF16, "hmcvi_chunks", "hmcvi_sample_chunks")
ELSEWHERE = ("blackjax", "numpyro")
ALL = (*ONE_BY_ONE, *ELSEWHERE)
CHEAP = (*ONE_BY_ONE, "hmcvi_chunks", "hmcvi_sample_chunks", *ELSEWHERE)
COMPILED, EAGER, CHUNKS = (f"hmcvi_{name}/blackjax" for name in ("compiled", "eager", "chunks"))
ITEMS = {
    "decoder": [Item("decoder", 1000, 2, (BF16, *ALL), {COMPILED: 1.5, EAGER: 0.9})],
    "logistic": [
        Item("logistic", 1, 1, ALL, {COMPILED: 1.2}),
        Item("logistic", 100, 1, ALL, {COMPILED: 1.6, EAGER: 0.65}),
        Item("logistic", 1000, 1, ALL, {COMPILED: 1.6, EAGER: 0.65}),
    ],
    "normal10": [
        Item("normal10", 1, 1, CHEAP, {CHUNKS: 0.3}),
        Item("normal10", 100, 1, CHEAP, {CHUNKS: 0.9}),
        Item("normal10", 1000, 1, CHEAP, {CHUNKS: 4.0}),
    ],
    "normal100": [Item("normal100", 1000, 1, CHEAP, {CHUNKS: 1.5})],
    "pyro": [
        Item(target, 1, 1, (*ONE_BY_ONE, "pyro"), {"hmcvi_compiled/pyro": 10.0})
        for target in ("logistic", "normal10")
    ],
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("item", nargs="?", default="all", choices=[*ITEMS, "memory", "all"])
    parser.add_argument("--repeats", type=int, default=7)
    add_peer_python(parser)


def compare(item: Item, repeats: int, peer_python: str | None) -> Record:
    """Start the engines one after the other, then let them take turns."""
    cores = idle_cores(item.threads)
    with ExitStack() as stack:
        engines = {}
        for name in item.engines:
            python = peer_python if name in ELSEWHERE else sys.executable
            if python is not None:
                engine = worker("kernel_engines", name, item.target, item.chains, cores=cores, python=python)
                engines[name] = stack.enter_context(engine)
        runs = take_turns({name: engine.ask for name, engine in engines.items()}, repeats)
    return record(item, engines, runs)


def record(item: Item, engines: dict[str, Worker], runs: dict[str, list[Record]]) -> Record:
    rates = {
        name: [item.chains * LEAPFROGS * run["transitions"] / run["seconds"] for run in own]
        for name, own in runs.items()
    }
    acceptances = {name: statistics.mean(run["acceptance"] for run in own) for name, own in runs.items()}
    table = {
        f"{ours}/{peer}": spread(ratios(rates[ours], rates[peer]), at_least=item.aims.get(f"{ours}/{peer}"))
        for ours in engines
        for peer in engines
        if ours in OURS and peer not in OURS
    }
    versions: dict[str, str] = {}
    for engine in engines.values():
        versions |= engine.start["versions"]
    return {
        "target": item.target,
        "chains": item.chains,
        "threads": item.threads,
        "leapfrogs": LEAPFROGS,
        "repeats": max(map(len, runs.values())),
        "chain_leapfrogs_per_s": {name: spread(values, 0) for name, values in rates.items()},
        "ratios": table,
        "acceptance": {name: round(value, 4) for name, value in acceptances.items()},
        "acceptance_agrees": max(acceptances.values()) - min(acceptances.values()) < SAME_ACCEPTANCE,
        "first_call_s": {name: engine.start["first_call_s"] for name, engine in engines.items()},
        "others": round(max(run["others"] for own in runs.values() for run in own), 2),
        "versions": versions,
    }


def run(args: argparse.Namespace) -> Iterator[Record]:
    for name, items in ITEMS.items():
        if args.item in (name, "all"):
            for item in items:
                yield compare(item, args.repeats, args.peer_python)
    if args.item in ("memory", "all"):
        yield kernel_memory.compare(args.repeats)
