"""What `python train.py` gains by its chain, over a control that trains the plain VAE for the same time.

For each seed: the default run, and a control that goes on from the run's own plain VAE with the same settings
for as many epochs as take the CPU time of the chain.  Gains of bound on the test images, with errors of the
differences image by image.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measuring import Record, quickly

LEAST_GAIN, LEAST_ERRORS = 1.0, 4.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings other than the default")
    quickly(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    quick = ["train.pretrain_epochs=2", "train.epochs=2", "evaluate.nll_samples=10"] if args.quick else []
    for seed in args.seeds[: 1 if args.quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            yield {"seed": seed, **compare([*args.overrides, *quick], seed, folder)}


def compare(overrides: list[str], seed: int, folder: str) -> Record:
    """The default run and its control."""
    from hmcvi.commands.train import DEFAULT_CONFIG
    from hmcvi.training import InterruptGuard, Run, load_config
    from hmcvi.training.checkpoint import load
    from hmcvi.training.comparison import paired

    def trained(name: str, *more: str) -> Record:
        settings = [*overrides, *more, f"seed={seed}", f"runs={folder}", f"name={name}"]
        with InterruptGuard() as guard:
            return Run.create(load_config(DEFAULT_CONFIG, settings)).train(guard)

    summary = trained("refined")
    plain, refined = summary["stages"]
    epochs = max(1, round(plain["epochs"] * refined["cpu_seconds"] / plain["cpu_seconds"]))
    control = trained(
        "control", "chain.kind=none", f"train.init_from={folder}/refined/vae.pt", f"train.epochs={epochs}"
    )["stages"][-1]
    ours, theirs = (
        load(Path(folder) / name) for name in ("refined/chain-scores.pt", "control/vae-scores.pt")
    )
    gains = paired(theirs, ours)
    return {
        "bounds": {"vae": plain["bound"], "refined": refined["bound"], "control": control["bound"]},
        "cpu_seconds": [stage["cpu_seconds"] for stage in (plain, refined, control)],
        "refinement_gain": [refined["refinement_gain"], refined["refinement_gain_se"]],
        "gain_over_control": [gains["bound_gain"], gains["bound_gain_se"]],
        "met": gains["bound_gain"] >= max(LEAST_GAIN, LEAST_ERRORS * gains["bound_gain_se"]),
        "epochs": [stage["epochs"] for stage in (plain, refined, control)],
    }
