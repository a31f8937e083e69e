"""The command line: `hmcvi COMMAND`, and `hmcvi experiment NAME` for the papers' experiments.

A command is a module with a docstring, `configure(parser)` and `run(args) -> int` (the exit code); it is
imported only when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence

COMMANDS: Mapping[str, str] = {
    "evidence": "hmcvi.commands.evidence",
    "experiment": "experiments",
    "inpaint": "hmcvi.commands.inpaint",
    "table1": "experiments.table1",
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        return dispatch("hmcvi", COMMANDS, argv)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


def dispatch(program: str, commands: Mapping[str, str], argv: Sequence[str]) -> int:
    """Run the command that argv[0] names, with the rest as its arguments."""
    chooser = argparse.ArgumentParser(prog=program)
    chooser.add_argument("command", choices=sorted(commands))
    chooser.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = chooser.parse_args(argv[:1])
    module = importlib.import_module(commands[chosen.command])
    parser = argparse.ArgumentParser(
        prog=f"{program} {chosen.command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    return module.run(parser.parse_args(argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
