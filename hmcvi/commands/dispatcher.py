"""Choose a command by its name, run it, turn what may go wrong into one line and an exit code."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hmcvi.data import DataError
from hmcvi.data.masks import MaskError
from hmcvi.training import CheckpointError, ConfigError, Interrupted

MISTAKES = (CheckpointError, ConfigError, DataError, MaskError)


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
    chooser.add_argument("name", choices=sorted(commands), metavar="NAME")
    chooser.add_argument("options", nargs=argparse.REMAINDER, help="of the command")
    chosen = chooser.parse_args(argv[:1])
    module = importlib.import_module(commands[chosen.name])
    parser = argparse.ArgumentParser(
        prog=f"{program} {chosen.name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    args = parser.parse_args(argv[1:])
    return exit_code(lambda: module.run(args))


def exit_code(work: Callable[[], int]) -> int:
    """Its result; 2 after a mistake, which is explained in one line; 130 after Ctrl-C."""
    try:
        return work()
    except MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print("\nstopped and saved; the same command goes on", flush=True)
        return stop.exit_code
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


def _summary(module: str) -> str:
    """The first line of its docstring, read without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return (ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or "").partition("\n")[0]
