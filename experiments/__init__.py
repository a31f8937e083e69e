"""The papers' experiments: `hmcvi experiment NAME --out DIR` writes a result file and a figure.

An experiment is a module with a docstring, `configure(parser)` and `run(args) -> int`, like a command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from hmcvi.cli import dispatch
from hmcvi.data import DataError

EXPERIMENTS: Mapping[str, str] = {
    "boltzmann": "experiments.tempering.boltzmann",
    "dhmc": "experiments.dhmc",
    "generalised-lambda": "experiments.generators.generalised_lambda",
    "gaussian-latent": "experiments.pseudo_marginal.gaussian_latent",
    "gp-probit": "experiments.pseudo_marginal.gp_probit",
    "hmc-picture": "experiments.hmc_picture",
    "inpainting": "experiments.inpainting",
    "iwae-evidence": "experiments.tempering.iwae",
    "lotka-volterra": "experiments.generators.lotka_volterra",
    "pose": "experiments.pose",
    "radon": "experiments.tempering.radon",
    "simplex": "experiments.simplex",
    "slice-picture": "experiments.slice_picture",
    "vae-globals": "experiments.pseudo_marginal.vae_globals",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=sorted(EXPERIMENTS))
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def run(args: argparse.Namespace) -> int:
    from hmcvi.training import CheckpointError, ConfigError, Interrupted

    try:
        return dispatch("hmcvi experiment", EXPERIMENTS, [args.name, *args.arguments])
    except (CheckpointError, ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        return stop.exit_code
