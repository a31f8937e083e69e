"""Run a benchmark: every comparison is one JSON line."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import BENCHMARKS
from benchmarks.measuring import processor


def listing() -> str:
    """The benchmarks, each with the first line of its docstring."""
    lines = [
        "python -m benchmarks NAME [options]      NAME --help explains the options",
        "python -m benchmarks all [options]       all of RESULTS.md in one go; --list says what that is",
        "python -m benchmarks report              RESULTS.md from the records",
        "",
    ]
    for name in BENCHMARKS:
        source = (Path(__file__).parent / f"{name}.py").read_text()
        lines.append(f"  {name:<16}{(ast.get_docstring(ast.parse(source)) or '').splitlines()[0]}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    name, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if name in ("-h", "--help"):
        print(listing())
        return 0
    if name in ("all", "report"):
        command = importlib.import_module("benchmarks.suite" if name == "all" else "benchmarks.report")
        return int(command.main(rest))
    if name not in BENCHMARKS:
        print(f"no benchmark {name!r}\n{listing()}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"benchmarks.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the lines to FILE as well")
    module.configure(parser)
    args = parser.parse_args(rest)
    if getattr(args, "quick", False):
        args.repeats = 2
    for record in module.run(args):
        line = json.dumps({"benchmark": name, "processor": processor(), **record})
        print(line, flush=True)
        if args.json is not None:
            with args.json.open("a") as file:
                file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
