"""Train a variational autoencoder whose posterior is refined by Hamiltonian Monte Carlo.

    python train.py                                   the bundled digits, two stages, a few minutes
    python train.py --config configs/hmcvi-mnist.yaml data.root=~/data chain.num_hmc=5
    python train.py --resume runs/20260101-120000     go on after an interruption, bit for bit
    python train.py seeds=0,1,2 name=digits           a run for each seed, and the spread over them
    tensorboard --logdir runs                         watch
    torchrun --nproc-per-node 4 train.py ...          share every batch among four processes

Every key of a configuration can be set as section.key=value; `hmcvi/training/config.py` lists them.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hmcvi.data import DataError
from hmcvi.internal.processes import Processes, may_restart, processes, restarted
from hmcvi.training import (
    CheckpointError,
    Config,
    ConfigError,
    Interrupted,
    InterruptGuard,
    Run,
    load_config,
    report,
)
from hmcvi.training.seeds import report_seeds, runs_of_seeds, save_seeds, take_seeds, with_name

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "default.yaml"


def main(argv: Sequence[str] | None = None) -> int:
    """Configuration, run, summary; the exit code."""
    args = parse(argv)
    with processes() as group:
        try:
            seeds, args.overrides = take_seeds(args.overrides)
            runs, again = begin_seeds(args, seeds, group) if seeds else begin(args, group)
            summaries = []
            for run in runs:
                print(f"run folder: {run.folder}    watch it: tensorboard --logdir {run.folder}", flush=True)
                with InterruptGuard() as guard:
                    summaries.append(train(run, guard))
                print(report(summaries[-1]))
            if seeds:
                print(report_seeds(save_seeds(summaries, run)))
        except Interrupted as stop:
            print(f"\nstopped and saved; continue with: python train.py {again}", flush=True)
            return stop.exit_code
        except KeyboardInterrupt:
            print("\nstopped at once; --resume continues from the last checkpoint", flush=True)
            return 130
        except (ConfigError, DataError, CheckpointError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0


def train(run: Run, guard: InterruptGuard) -> dict[str, Any]:
    """How a run goes: data, model, the stages that are left, and what came of them.

    The same as `run.train(guard)`, step by step.
    """
    run.set_up()  # seed, device, threads
    images = run.load_images()
    model = run.build_model(images)  # encoder and decoder
    run.save_config()
    run.update_scores(model, images, guard)  # of finished stages, after a change of evaluate.*
    for stage in run.stages_left():  # first the plain VAE, then the chain that refines its posterior
        cost = run.fit(stage, model, images, guard)  # the loop is in hmcvi/training/loop.py
        run.evaluate(stage, cost, model, images, guard)  # bound and likelihood of the test images
        run.illustrate(stage, model, images)  # posterior.png, for two latents
    return run.summarise()


def begin(args: argparse.Namespace, group: Processes) -> tuple[list[Run], str]:
    """A new run, or one that goes on: by --resume, or because torchrun has started the processes again.

    And the arguments by which it would go on.
    """
    if args.resume:
        run = Run.resume(args.resume, args.overrides, group)
        return [run], f"--resume {run.folder}"
    config = configure(args)
    folder = Path(config.runs).expanduser() / (config.name or "")
    goes_on = restarted() and (folder / "checkpoint.pt").exists()
    run = Run.resume(folder, args.overrides, group) if goes_on else Run.create(config, group)
    return [run], f"--resume {run.folder}"


def begin_seeds(args: argparse.Namespace, seeds: list[int], group: Processes) -> tuple[Iterator[Run], str]:
    """A run for each seed, in the folder NAME-seedS; those that have begun go on."""
    if args.resume:
        raise ConfigError("--resume is for one run: seeds=... goes on with all of them by their name=...")
    config = with_name(configure(args), group)
    again = ["--config", str(args.config), *args.overrides, f"seeds={','.join(map(str, seeds))}"]
    return runs_of_seeds(config, seeds, group), shlex.join([*again, f"name={config.name}"])


def configure(args: argparse.Namespace) -> Config:
    config = load_config(args.config, args.overrides)
    if may_restart() and config.name is None:
        raise ConfigError("with --max-restarts the run needs a name=... by which it is found again")
    return config


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--config", metavar="FILE", default=DEFAULT_CONFIG, help="YAML file (default: %(default)s)"
    )
    start.add_argument("--resume", metavar="RUN", help="folder of the run to continue")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the file's")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
