"""Wall time until `import hmcvi` and `python train.py --help` are done, against `import torch`.

Fresh processes, which take turns after one round that is not counted.  One record: seconds, ratios to the
import of torch, and which of the heavy modules were imported.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.measuring import Record, quickly, ratios, seconds, spread, take_turns
from benchmarks.workers import ROOT

COMMANDS = {
    "nothing": ("-c", "pass"),
    "import torch": ("-c", "import torch"),
    "import hmcvi": ("-c", "import hmcvi"),
    "train.py --help": ("train.py", "--help"),
}
AIMS = {"import hmcvi": 2.5, "train.py --help": 3.0}
HEAVY = ("pyro", "arviz", "matplotlib", "tensorboard", "torch._inductor", "sympy")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=7)
    quickly(parser)


def python(*arguments: str) -> str:
    """Run it to its end; what it wrote to its standard error."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr


def heavy_modules(command: tuple[str, ...]) -> list[str]:
    lines = python("-X", "importtime", *command).splitlines()
    imported = {line.rsplit("|", 1)[-1].strip() for line in lines if line.startswith("import time:")}
    return [name for name in HEAVY if name in imported]


def run(args: argparse.Namespace) -> Iterator[Record]:
    works = {name: partial(seconds, partial(python, *command)) for name, command in COMMANDS.items()}
    heavy = {name: heavy_modules(COMMANDS[name]) for name in AIMS}
    if not args.quick:
        take_turns(works, 1)
    times = take_turns(works, args.repeats)
    yield {
        "repeats": args.repeats,
        "seconds": {name: spread(own, at_most=AIMS.get(name)) for name, own in times.items()},
        "over_import_torch": {name: spread(ratios(times[name], times["import torch"])) for name in AIMS},
        "heavy_modules": heavy,
    }
