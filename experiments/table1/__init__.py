"""Reproduce Table 1 of Wolf, Karl & van der Smagt (2016): MNIST with 2 and 20 latents, 22 rows.

python -m experiments table1 --data ~/data                         every row that is not finished, in order
python -m experiments table1 hmcvi-08 hmcvi-17 --out runs/table1   some rows, elsewhere
python -m experiments table1 --budget 60                           stop after an hour; go on by the same
python -m experiments table1 --report results/table1               the table, its plot, our questions
python -m experiments table1 hmcvi-17 --evaluate 3 --data ~/data   do its weights give its figures?
python -m experiments table1 --ais --data ~/data                   likelihoods of stored weights by AIS
python -m experiments table1 hmcvi-08 --halve                      store its weights in half precision
python -m experiments table1 hmcvi-08 --figures docs/figures       the paper's pictures, from its weights
torchrun --nproc-per-node 4 -m experiments table1                  share every batch among four processes
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.table1 import questions, repetition, table
from experiments.table1.figures import write_figures
from experiments.table1.job import train_rows
from experiments.table1.likelihood import anneal_rows
from experiments.table1.rows import PUBLISHED, RESULTS, read_results, row_names
from experiments.table1.weights import halve_row, has_weights
from hmcvi.commands.endings import exit_code
from hmcvi.internal.processes import Processes, processes
from hmcvi.training import ConfigError, InterruptGuard


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
    other.add_argument(
        "--ais", action="store_true", help="the likelihood of stored weights by annealed importance sampling"
    )
    other.add_argument(
        "--halve", action="store_true", help="store the weights of these rows in half precision"
    )
    other.add_argument("--figures", metavar="DIR", type=Path, help="write pictures to DIR, train nothing")


def run(args: argparse.Namespace) -> int:
    if args.report is not None:
        return report(args.report)
    with processes() as group:
        return exit_code(lambda: _run(args, group))


def _run(args: argparse.Namespace, group: Processes) -> int:
    overrides = [*args.set, *([f"data.root={args.data}"] if args.data else [])]
    if args.figures is not None:
        write_figures((args.rows or ["hmcvi-08"])[0], args.out, args.figures, overrides)
        return 0
    if args.halve:
        for row in args.rows:
            halve_row(row, args.out)
        return 0
    with InterruptGuard(60 * args.budget if args.budget is not None else None) as guard:
        if args.evaluate is not None:
            return repeat(args.rows, args.out, args.evaluate, guard, overrides, group)
        if args.ais:
            anneal_rows(args.rows or with_weights(args.out), args.out, guard, overrides, group)
            return report(args.out) if group.first else 0
        train_rows(args.rows or list(PUBLISHED), args.out, guard, overrides, group)
    return report(args.out) if group.first else 0


def report(folder: Path) -> int:
    """Print the table of the results in `folder` and draw it there."""
    results = read_results(folder)
    if not results:
        raise ConfigError(f"{folder} holds no results")
    print(table.markdown(results))
    if asked := questions.markdown(results, folder):
        print(f"\n{asked}")
    table.plot(results, folder / "table1.png")
    return 0


def with_weights(out: Path) -> list[str]:
    """The finished rows whose weights are stored."""
    finished = read_results(out)
    return [row for row in row_names() if row in finished and has_weights(row, out)]


def repeat(
    rows: Sequence[str],
    out: Path,
    seed: int,
    guard: InterruptGuard,
    overrides: Sequence[str],
    group: Processes,
) -> int:
    """Print recorded figures beside repeated ones; 1 if they differ too much."""
    figures = [
        figure
        for row in rows or read_results(out)
        for figure in repetition.repeat_row(row, out, seed, guard, overrides, group)
    ]
    if group.first:
        print(repetition.markdown(figures))
    return int(any(figure.deviation > repetition.LIMIT for figure in figures))
