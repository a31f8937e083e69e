"""The likelihood of a trained VAE on test images, by importance sampling, annealing or tempering.

hmcvi evidence runs/20260101-120000                            annealed importance sampling, 100 test images
hmcvi evidence RUN --method bdmc --temperatures 1000           a sandwich, on images drawn from the model
hmcvi evidence RUN --method iwae --samples 5000 --images 1000  the IWAE bound
hmcvi evidence FOLDER --dataset mnist --data ~/data            published IWAE weights (*.npz) instead of a run
torchrun --nproc-per-node 4 -m hmcvi.cli evidence RUN          four processes, the same result

The same command goes on where it was stopped.  evidence-METHOD.json has the result.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hmcvi.commands.evidence_job import estimate_images, report
from hmcvi.commands.evidence_methods import METHODS, Settings
from hmcvi.commands.evidence_models import held_out_images, load_model, simulated_images
from hmcvi.data import DataError
from hmcvi.internal.processes import Processes, processes
from hmcvi.training import CheckpointError, ConfigError, Interrupted, InterruptGuard


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run, or of published IWAE weights")
    parser.add_argument("--method", choices=METHODS, default="ais")
    parser.add_argument("--images", type=int, default=100, metavar="N", help="default: %(default)s")
    parser.add_argument("--temperatures", type=int, default=1000, metavar="K", help="of ais, bdmc and st")
    parser.add_argument("--chains", type=int, default=16, metavar="C", help="for each image")
    parser.add_argument(
        "--samples", type=int, metavar="S", help="of is and iwae (5000), of each tempered chain (1000)"
    )
    parser.add_argument("--schedule", choices=("sigmoidal", "adaptive"), default="adaptive")
    parser.add_argument(
        "--simulated", action="store_true", help="draw the images from the model, as bdmc does"
    )
    parser.add_argument("--dataset", help="test images for published weights: mnist, mnist_binarized, …")
    parser.add_argument("--data", metavar="ROOT", help="folder of the data set")
    parser.add_argument("--batch", type=int, default=50, help="images at once (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the results (default: RUN)")


def run(args: argparse.Namespace) -> int:
    with processes() as group:
        return estimate_and_report(args, group)


def estimate_and_report(args: argparse.Namespace, group: Processes) -> int:
    try:
        for name in ("images", "temperatures", "chains", "batch"):
            if getattr(args, name) < 1:
                raise ConfigError(f"--{name} must be at least 1, got {getattr(args, name)}")
        model, test = load_model(args.run, args.dataset, args.data)
        if args.simulated or args.method == "bdmc":
            data = simulated_images(model, args.images, args.seed)
        else:
            data = held_out_images(test, args.images, args.seed)
        settings = Settings(
            args.method, args.temperatures, args.chains, args.samples, args.schedule, args.seed, args.batch
        )
        with InterruptGuard() as guard:
            summary = estimate_images(model, data, settings, args.out or args.run, guard, group)
    except Interrupted as stop:
        print("\nstopped and saved; the same command goes on", flush=True)
        return stop.exit_code
    except (ConfigError, DataError, CheckpointError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report(summary))
    return 0
