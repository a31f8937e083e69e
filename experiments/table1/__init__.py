"""Reproduce Table 1 of Wolf, Karl & van der Smagt (2016): MNIST with 2 and 20 latents, 22 rows.

hmcvi table1 --data ~/data                          every row that is not finished, one after another
hmcvi table1 hmcvi-08 hmcvi-17 --out runs/table1    some rows, elsewhere
hmcvi table1 --budget 60                            stop after an hour; the same command goes on
hmcvi table1 --report results/table1                the table, its plot and our questions, from the results
hmcvi table1 hmcvi-17 --evaluate 3 --data ~/data    do its weights give its figures, with seed 3?
hmcvi table1 hmcvi-08 --figures docs/figures        the paper's pictures, from the weights of that row
torchrun --nproc-per-node 4 -m hmcvi.cli table1     share every batch among four processes
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.table1 import again, questions, table
from experiments.table1.job import train_rows
from experiments.table1.rows import PUBLISHED, RESULTS, read_results
from hmcvi.data import DataError
from hmcvi.internal.processes import Processes, processes
from hmcvi.training import CheckpointError, ConfigError, Interrupted, InterruptGuard


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rows", nargs="*", metavar="ROW", help="basic-vi-2d, hmcvi-01, … (default: all 22)")
    parser.add_argument("--data", metavar="ROOT", help="folder of the MNIST files; missing ones are fetched")
    parser.add_argument("--out", metavar="DIR", type=Path, default=RESULTS, help="run folders and results")
    parser.add_argument("--budget", metavar="MINUTES", type=float, help="stop after so long and save")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="replace a setting of every row"
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--report", metavar="DIR", type=Path, help="print the table of DIR, train nothing")
    other.add_argument(
        "--evaluate",
        metavar="SEED",
        type=int,
        help="evaluate the weights of finished rows with other random numbers, train nothing",
    )
    other.add_argument("--figures", metavar="DIR", type=Path, help="write pictures to DIR, train nothing")


def run(args: argparse.Namespace) -> int:
    if args.report is not None:
        return report(args.report)
    overrides = [*args.set, *([f"data.root={args.data}"] if args.data else [])]
    with processes() as group:
        try:
            if args.figures is not None:
                from experiments.table1.figures import write_figures

                write_figures((args.rows or ["hmcvi-08"])[0], args.out, args.figures, overrides)
                return 0
            with InterruptGuard(60 * args.budget if args.budget is not None else None) as guard:
                if args.evaluate is not None:
                    return repeat(args.rows, args.out, args.evaluate, guard, overrides, group)
                train_rows(args.rows or list(PUBLISHED), args.out, guard, overrides, group)
        except Interrupted as stop:
            print("\nstopped and saved; the same command goes on", flush=True)
            return stop.exit_code
        except (ConfigError, DataError, CheckpointError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return report(args.out) if group.first else 0


def report(folder: Path) -> int:
    """Print the table of the results in `folder` and draw it there."""
    results = read_results(folder)
    if not results:
        print(f"error: {folder} holds no results", file=sys.stderr)
        return 2
    print(table.markdown(results))
    if asked := questions.markdown(results, folder):
        print(f"\n{asked}")
    table.plot(results, folder / "table1.png")
    return 0


def repeat(
    rows: Sequence[str],
    out: Path,
    seed: int,
    guard: InterruptGuard,
    overrides: Sequence[str],
    group: Processes,
) -> int:
    """Print recorded figures beside those found again; 1 if they differ too much."""
    figures = [
        figure
        for row in rows or read_results(out)
        for figure in again.repeat_row(row, out, seed, guard, overrides, group)
    ]
    if group.first:
        print(again.markdown(figures))
    return int(any(figure.deviation > again.LIMIT for figure in figures))
