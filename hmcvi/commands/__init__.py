"""The command line: `hmcvi COMMAND …`, or `python -m hmcvi COMMAND …`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence

from hmcvi.commands.dispatcher import dispatch

COMMANDS: Mapping[str, str] = {
    "compare": "hmcvi.commands.compare",
    "evidence": "hmcvi.commands.evidence",
    "inpaint": "hmcvi.commands.inpaint",
    "train": "hmcvi.commands.train",
}
# commands of the first release that are found elsewhere now
MOVED: Mapping[str, str] = {
    "experiment": "python -m experiments",
    "table1": "python -m experiments table1",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv and argv[0] in MOVED:
        now = f"{MOVED[argv[0]]} {shlex.join(argv[1:])}".rstrip()
        print(
            f"error: `hmcvi {argv[0]}` is not part of the package any more: run `{now}` in a checkout of the "
            "repository",
            file=sys.stderr,
        )
        return 2
    return dispatch("hmcvi", COMMANDS, argv)
