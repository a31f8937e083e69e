"""Estimate the likelihood of a trained VAE on test images, by importance sampling, annealing or tempering.

hmcvi evidence runs/20260101-120000                            annealed importance sampling, 100 test images
hmcvi evidence RUN --method bidirectional --temperatures 1000  a sandwich, on images drawn from the model
hmcvi evidence RUN --method iwae --samples 5000 --images 1000  the IWAE bound
hmcvi evidence FOLDER --dataset mnist --data ~/data            published IWAE weights (*.npz) instead of a run
torchrun --nproc-per-node 4 -m hmcvi evidence RUN              four processes, the same result

Methods are the estimators of hmcvi.evidence, by their names there: ais, bidirectional, smc, importance, iwae,
thermodynamic_integration, simulated_tempering, gibbs_tempering, tempered_hmc.

The same command goes on where it was stopped.  evidence-METHOD.json has the result.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hmcvi.commands.endings import exit_code
from hmcvi.commands.evidence_batches import Settings, estimate_images, save_summary
from hmcvi.commands.images import held_out_images, load_model, simulated_images
from hmcvi.evidence.methods import NEED_EXACT_DRAWS, method_name
from hmcvi.internal.processes import Processes, processes
from hmcvi.training import ConfigError, InterruptGuard

TEMPERATURES = 1000
FEW_TEMPERATURES = {"thermodynamic_integration": 30}  # chains run at all of them at once


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run, or of published IWAE weights")
    parser.add_argument("--method", default="ais", help="default: %(default)s")
    parser.add_argument("--images", type=int, default=100, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--temperatures",
        type=int,
        metavar="K",
        help=f"of annealing, simulated tempering ({TEMPERATURES}) and thermodynamic integration (30)",
    )
    parser.add_argument("--chains", type=int, default=16, metavar="C", help="for each image")
    parser.add_argument(
        "--samples",
        type=int,
        metavar="S",
        help="of importance and iwae (5000), of each tempered chain (1000), at each temperature (500), and "
        "particles of smc (512)",
    )
    parser.add_argument("--schedule", choices=("sigmoidal", "adaptive"), default="adaptive")
    parser.add_argument(
        "--simulated", action="store_true", help="draw the images from the model, as bidirectional does"
    )
    parser.add_argument("--dataset", help="test images for published weights: mnist, mnist_binarized, …")
    parser.add_argument("--data", metavar="ROOT", help="folder of the data set")
    parser.add_argument("--batch", type=int, default=50, help="images at once (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the results (default: RUN)")


def run(args: argparse.Namespace) -> int:
    with processes() as group:
        return exit_code(lambda: _run(args, group))


def _run(args: argparse.Namespace, group: Processes) -> int:
    try:
        settings = _settings(args)
        model, test = load_model(args.run, args.dataset, args.data)
        if args.simulated or settings.method in NEED_EXACT_DRAWS:
            data = simulated_images(model, args.images, args.seed)
        else:
            data = held_out_images(test, args.images, args.seed)
        with InterruptGuard() as guard:
            summary = estimate_images(model, data, settings, args.out or args.run, guard, group)
    except ValueError as error:  # the estimators explain what they refuse
        raise ConfigError(str(error)) from None
    print(report(summary))
    if group.first:
        save_summary(summary, args.out or args.run)
    if summary["num_failed"]:
        raise ConfigError(
            f"{summary['num_failed']} of {summary['num_images']} images have no finite estimate: the decoder "
            "gives no number for them, or all weights are zero; the figures are of the others"
        )
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    method = method_name(args.method)
    if args.temperatures is None:
        args.temperatures = FEW_TEMPERATURES.get(method, TEMPERATURES)
    for name in ("images", "temperatures", "chains", "batch"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {getattr(args, name)}")
    return Settings(
        method, args.temperatures, args.chains, args.samples, args.schedule, args.seed, args.batch
    )


def report(summary: dict[str, Any]) -> str:
    """The result in a few lines."""
    lines = [
        f"log p(x) per image: {summary['log_likelihood']:.3f} ± {summary['sampling_se']:.3f} (sampling) "
        f"± {summary['log_likelihood_se']:.3f} (over {summary['num_images']} images)",
        f"effective samples: {summary['ess_median']:.1f} (median image), {summary['ess_min']:.1f} (worst)",
    ]
    if "pareto_k_max" in summary:
        lines.append(f"Pareto k of the weights: {summary['pareto_k_max']:.2f} (worst image)")
    if "heavy_tail" in summary:
        lines.append(summary["heavy_tail"])
    if "gap" in summary:
        lines.append(
            f"between {summary['lower']:.3f} and {summary['upper']:.3f}: a gap of {summary['gap']:.3f} ± "
            f"{summary['gap_se']:.3f}"
        )
    return "\n".join([*lines, f"{summary['seconds']:.0f} s, {summary['cpu_seconds']:.0f} s of CPU"])
