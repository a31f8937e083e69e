"""Compare trained runs: bound, likelihood and what each gains over the first, paired image by image.

hmcvi compare runs/a runs/b runs/c               one table
hmcvi compare runs/digits-* --plot compare.png   and a picture of it
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hmcvi.commands.compare_figure import draw_comparison
from hmcvi.training import ConfigError
from hmcvi.training.compare_runs import compare_runs, comparison_table


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", type=Path, help="folders; the first is compared with"
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="a picture, .png, .svg or .pdf")


def run(args: argparse.Namespace) -> int:
    if len(args.runs) < 2:
        raise ConfigError(f"a comparison needs two runs or more, got {args.runs[0]} alone")
    runs = compare_runs(args.runs)
    print(comparison_table(runs))
    if args.plot is not None:
        draw_comparison(runs, args.plot)
    return 0
