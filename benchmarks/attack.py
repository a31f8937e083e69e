"""Attacks on what docs/reliability.md promises: how many were tried, and how many succeeded.

python -m benchmarks attack --minutes 30                      all of them, in turns
python -m benchmarks attack --minutes 5 --only configs,files  some of them

Configurations and files are fuzzed, processes killed, disks fail, runs repeated, threads run beside each
other, servers lie.  One record for each kind; `failed` must be 0.  Another --seed tries other things.
"""

from __future__ import annotations

import argparse
import importlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.attack_parts import Clock
from benchmarks.measuring import Record, quickly

KINDS = {
    "configs": 0.2,
    "files": 0.25,
    "kills": 0.25,
    "faults": 0.15,
    "leaks": 0.05,
    "threads": 0.05,
    "downloads": 0.05,
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=10.0, help="in all (default: %(default)s)")
    parser.add_argument("--only", default=",".join(KINDS), help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    quickly(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    chosen = args.only.split(",")
    total = sum(KINDS[name] for name in chosen)
    for name in chosen:
        module = importlib.import_module(f"benchmarks.attack_{name}")
        seconds = 60 * args.minutes * KINDS[name] / total
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock(seconds, 1 if args.quick else 10**9)
            count = module.attack(random.Random(f"{args.seed} {name}"), Path(folder), clock)
        yield {"attack": name, "seed": args.seed, "seconds": round(seconds), **count.record()}
