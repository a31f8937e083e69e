"""Choose a command by its name, run it, turn what may go wrong into one line and an exit code."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import hmcvi


def dispatch(program: str, commands: Mapping[str, str], argv: Sequence[str]) -> int:
    """Run the command that argv[0] names, with the rest as its arguments.

    commands: {name: module}.  A module has a docstring, `configure(parser)` and `run(args) -> int`, the exit
    code; it is imported only when it is asked for.
    """
    chooser = argparse.ArgumentParser(
        prog=program,
        description="\n".join(f"{name:<20}{_summary(module)}" for name, module in sorted(commands.items())),
        epilog=f"`{program} NAME --help` explains the options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chooser.add_argument("--version", action="version", version=f"hmcvi {hmcvi.__version__}")
    chooser.add_argument("name", choices=sorted(commands), metavar="NAME")
    chooser.add_argument("options", nargs=argparse.REMAINDER, help="of the command")
    if not argv:
        chooser.print_help(sys.stderr)
        return 2
    chosen = chooser.parse_args(argv[:1])
    module = importlib.import_module(commands[chosen.name])
    parser = argparse.ArgumentParser(
        prog=f"{program} {chosen.name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    args = parser.parse_intermixed_args(argv[1:])
    endings = importlib.import_module("hmcvi.commands.endings")  # with torch, which help can do without
    code: int = endings.exit_code(lambda: module.run(args))
    return code


def _summary(module: str) -> str:
    """The first line of its docstring, read without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return (ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or "").partition("\n")[0]
