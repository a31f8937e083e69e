"""Train a variational autoencoder whose posterior is refined by Hamiltonian Monte Carlo.

hmcvi train                                     the bundled digits, two stages, a few minutes
hmcvi train --config hmcvi-mnist data.root=~/data chain.num_hmc=5
hmcvi train --resume runs/20260101-120000       go on after an interruption, bit for bit
hmcvi train --resume RUN train.epochs=200       train a finished run further
hmcvi train seeds=0,1,2 name=digits             a run for each seed, and the spread over them
hmcvi train --sweep chain.num_hmc=1,3,8         a run for each value, and a table of them
hmcvi train --sweep train.lr=1e-3,3e-3 --jobs   a command for each run, for xargs or a scheduler
tensorboard --logdir runs                       watch
torchrun --nproc-per-node 4 -m hmcvi train ...  share every batch among four processes

A configuration is a file, or the name of one that comes with the package (--config list prints them).  Every
key can be set as section.key=value; an unknown one is answered by the nearest known.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hmcvi.commands.endings import exit_code
from hmcvi.internal.processes import Processes, may_restart, processes, restarted
from hmcvi.training import Config, ConfigError, InterruptGuard, Run, load_config, report
from hmcvi.training.compare_runs import compare_runs, comparison_table
from hmcvi.training.config_files import SHIPPED, find_config, shipped_configs
from hmcvi.training.seeds import report_seeds, runs_of_seeds, save_seeds, take_seeds, with_name
from hmcvi.training.sweep import Point, begin_or_go_on, points

DEFAULT_CONFIG = SHIPPED / "default.yaml"


class Plan(NamedTuple):
    """The runs of a command, in order, and the arguments by which they would go on."""

    runs: Iterable[Run]
    again: str


def configure(parser: argparse.ArgumentParser) -> None:
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--config", metavar="FILE", default="default", help="file or name (default: %(default)s)"
    )
    start.add_argument("--resume", metavar="RUN", help="folder of the run to continue")
    parser.add_argument(
        "--sweep",
        metavar="KEY=A,B",
        action="append",
        default=[],
        help="a run for each value; may be repeated",
    )
    parser.add_argument("--jobs", action="store_true", help="print a command for each run, train nothing")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the file's")


def main(argv: Sequence[str] | None = None) -> int:
    """`hmcvi train` with these arguments, those of the program by default; its exit code."""
    parser = argparse.ArgumentParser(
        prog="hmcvi train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    configure(parser)
    return run(parser.parse_intermixed_args(argv))


def run(args: argparse.Namespace) -> int:
    if args.config == "list":
        print("\n".join(shipped_configs()))
        return 0
    again = ""

    def work() -> int:
        nonlocal again
        seeds, args.overrides = take_seeds(args.overrides)
        if args.jobs:
            print("\n".join(jobs(args, seeds)))
            return 0
        runs, again = plan(args, seeds, group)
        train_all(runs, seeds, bool(args.sweep))
        return 0

    with processes() as group:
        return exit_code(
            work,
            saved=lambda: f"stopped and saved; continue with: hmcvi train {again}",
            stopped="stopped at once; --resume continues from the last checkpoint",
        )


def train_all(runs: Iterable[Run], seeds: Sequence[int], is_sweep: bool) -> None:
    """Train the runs one after another; report each, the spread over seeds and, after a sweep, all."""
    summaries: list[dict[str, Any]] = []
    folders: list[Path] = []
    for run in runs:
        with InterruptGuard() as guard:
            summaries.append(run.train(guard, begun=partial(_announce, run)))
        print(report(summaries[-1]))
        run.files.refuse_waiting(run.folder)
        folders.append(run.folder)
        if seeds and len(summaries) % len(seeds) == 0:
            print(report_seeds(save_seeds(summaries[-len(seeds) :], run)))
    if is_sweep and run.processes.first:
        print(f"\n{comparison_table(compare_runs(folders))}")


def _announce(run: Run) -> None:
    print(f"run folder: {run.folder}    watch it: tensorboard --logdir {run.folder}", flush=True)


def plan(args: argparse.Namespace, seeds: list[int], group: Processes) -> Plan:
    """A new run, one that goes on, or a run for each seed and each value of a sweep."""
    if not seeds and not args.sweep:
        return _single(args, group)
    if args.resume:
        raise ConfigError("--resume is for one run: seeds=... and --sweep go on with all by their name=...")
    config = with_name(_configure(args), group)
    again = [*_arguments(args, seeds), f"name={config.name}"]
    return Plan(_several(args, config, seeds, group), shlex.join(again))


def _single(args: argparse.Namespace, group: Processes) -> Plan:
    """One run; it also goes on if torchrun has started the processes again."""
    if args.resume:
        run = Run.resume(args.resume, args.overrides, group)
    else:
        config = _configure(args)
        folder = Path(config.runs).expanduser() / (config.name or "")
        goes_on = restarted() and (folder / "checkpoint.pt").exists()
        run = Run.resume(folder, args.overrides, group) if goes_on else Run.create(config, group)
    return Plan([run], shlex.join(["--resume", str(run.folder)]))


def _several(args: argparse.Namespace, config: Config, seeds: list[int], group: Processes) -> Iterator[Run]:
    """A run for each point of the sweep, and for each seed; those that have begun go on."""
    for own in [_at(args, point, f"{config.name}{point.suffix}") for point in points(args.sweep)]:
        if seeds:
            yield from runs_of_seeds(own, seeds, group)
        else:
            yield begin_or_go_on(own, group)


def _at(args: argparse.Namespace, point: Point, name: str) -> Config:
    """The configuration of one point of a sweep.  All are read before the first run, to find mistakes."""
    return load_config(find_config(args.config), [*args.overrides, *point.overrides, f"name={name}"])


def jobs(args: argparse.Namespace, seeds: list[int]) -> Iterator[str]:
    """A command for each run; given again, it goes on."""
    config = _configure(args)
    if config.name is None:
        raise ConfigError("--jobs needs a name=... that the runs have in common")
    program = ["hmcvi", "train", "--config", str(args.config), *args.overrides]
    for point in points(args.sweep):
        _at(args, point, config.name)
        sweep = [word for override in point.overrides for word in ("--sweep", override)]
        for seed in [[f"seeds={seed}"] for seed in seeds] or [[]]:
            if not sweep and not seed:
                raise ConfigError("--jobs is for several runs: add --sweep KEY=A,B or seeds=0,1")
            yield shlex.join([*program, *sweep, *seed])


def _arguments(args: argparse.Namespace, seeds: list[int]) -> list[str]:
    sweeps = [word for sweep in args.sweep for word in ("--sweep", sweep)]
    several = [f"seeds={','.join(map(str, seeds))}"] if seeds else []
    return ["--config", str(args.config), *sweeps, *args.overrides, *several]


def _configure(args: argparse.Namespace) -> Config:
    config = load_config(find_config(args.config), args.overrides)
    if may_restart() and config.name is None:
        raise ConfigError("with --max-restarts the run needs a name=... by which it is found again")
    return config
