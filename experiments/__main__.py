"""Run an experiment: `python -m experiments NAME --out DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments import EXPERIMENTS
from hmcvi.commands.dispatcher import dispatch


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment that argv[0] names; its exit code."""
    return dispatch("python -m experiments", EXPERIMENTS, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
