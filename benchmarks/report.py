"""RESULTS.md from the records in results/: `python -m benchmarks report`, with --check only to compare.

RESULTS.in.md has the text.  {{table NAME}} in it stands for a table of `report_tables` or
`report_samplers`, {{commands NAME}} for the commands that made it, {{suite}} for what `python -m benchmarks
all` runs, {{sitting}} for where and when.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import report_samplers, report_tables
from benchmarks.report_format import records
from benchmarks.suite import ROOT, SITTING, SUITE

TEMPLATE, RESULTS = ROOT / "benchmarks" / "RESULTS.in.md", ROOT / "benchmarks" / "RESULTS.md"
TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made for made in (*report_tables.TABLES, *report_samplers.TABLES)
}
PROCESSOR = "AMD EPYC"
SEVERAL = f"Two cores of an {PROCESSOR}, torch 2.13.0, in several sittings on machines that differ in speed."


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="fail if RESULTS.md is another; write nothing")
    args = parser.parse_args(arguments)
    if not args.check:
        write()
        return 0
    if RESULTS.read_text() == report():
        return 0
    print("benchmarks/RESULTS.md is not what the records say: python -m benchmarks report", file=sys.stderr)
    return 1


def write() -> None:
    RESULTS.write_text(report())


def report() -> str:
    """The text of RESULTS.md."""
    return re.sub(r"\{\{(.*?)\}\}", lambda found: _filled(*found[1].split()), TEMPLATE.read_text())


def _filled(kind: str, *words: str) -> str:
    match kind:
        case "table":
            return TABLES[words[0]]()
        case "commands":
            return _shell(SUITE[words[0]].commands())
        case "sitting":
            return _sitting()
        case "suite":
            rows = [f"| `{name}` | {part.what} | {part.minutes} |" for name, part in SUITE.items()]
            return "\n".join(["| part | what is measured | minutes, roughly |", "|---|---|---|", *rows])
    raise ValueError(f"RESULTS.in.md asks for {kind!r}")


def _shell(commands: Sequence[str]) -> str:
    return "\n".join(["```sh", *commands, "```"])


def _sitting() -> str:
    if not (ROOT / SITTING).exists():
        return " ".join([SEVERAL, *_elsewhere()])
    found: dict[str, Any] = json.loads((ROOT / SITTING).read_text())
    return f"{found['cores']} cores of an {found['processor']}, torch {found['torch']}, on {found['date']}."


def _elsewhere() -> Iterator[str]:
    """The parts that were measured on other processors, one sentence for each of these."""
    found = {name: {row["processor"] for row in records(name) if "processor" in row} for name in SUITE}
    for processor in sorted(set().union(*found.values()) - {PROCESSOR}):
        parts = ", ".join(f"`{name}`" for name in SUITE if processor in found[name])
        yield f"On an {processor} instead: {parts}."
