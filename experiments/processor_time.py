"""How much processor time the stored results took, as far as they say it themselves.

--results names the folder with a folder for each experiment.  Written is result.json: the seconds that the
files of each of them add up to, and which say nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.report import configure as configure_output
from experiments.report import write
from hmcvi.internal.storage import load_json

PARTS = ("seconds", "warmup_seconds")  # of a run whose record has no sum
RESULTS = Path(__file__).parents[1] / "results"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the results."""
    configure_output(parser)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of all results")


def seconds_of(content: Any) -> float:
    """What a record says of itself, else the sum of what its parts say.

    `cpu_seconds`, or `seconds` and `warmup_seconds`, are those of all that is beside them.
    """
    if isinstance(content, Mapping):
        if isinstance(total := content.get("cpu_seconds"), int | float):
            return float(total)
        if own := [content[name] for name in PARTS if isinstance(content.get(name), int | float)]:
            return float(sum(own))
        return sum(seconds_of(value) for value in content.values())
    if isinstance(content, Sequence) and not isinstance(content, str):
        return sum(seconds_of(value) for value in content)
    return 0.0


def run(args: argparse.Namespace) -> int:
    folders: dict[str, float] = {}
    silent: list[str] = []
    for file in sorted(args.results.rglob("*.json")):
        name = file.relative_to(args.results)
        if args.out.resolve() in file.resolve().parents:
            continue
        seconds = seconds_of(load_json(file))
        folders[name.parts[0]] = folders.get(name.parts[0], 0.0) + seconds
        if seconds == 0:
            silent.append(name.as_posix())
    for folder, seconds in folders.items():
        print(f"{folder:24s}{seconds:10,.0f} s")
    print(f"{'all':24s}{sum(folders.values()):10,.0f} s")
    write(args.out, {"cpu_seconds_of_folders": folders, "total": sum(folders.values()), "without": silent})
    return 0
