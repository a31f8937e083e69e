"""Relaxed Boltzmann machines with many modes: log Z and moments by annealing and by tempering.

Densities are mixtures of 2ⁿ normal distributions whose moments are known.  --data names the folder with
params_and_moms_*.npz and exact_recomputed_*.npz (n = 30); without it five random machines of 12 units are
made.  The base is the normal distribution with the moments of a mixture of mean-field fits, and ζ their sum.
Written are result.json (RMSE of log Z, mean and covariance over systems and independent runs, against
processor time) and figure.png.  [Graham 2018, §5.6.1, figure 5.2]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from experiments.models.boltzmann import BoltzmannMachine, Moments, Relaxation, apply
from experiments.report import configure_with_quick, timed, write
from experiments.tempering.figure import draw_boltzmann
from hmcvi.data import DataError
from hmcvi.density import Density
from hmcvi.evidence import (
    Evidence,
    Fit,
    ais,
    gibbs_tempering,
    moment_matched_mixture,
    simulated_tempering,
    tempered_hmc,
)
from hmcvi.kernels import HMC

NUM_SYSTEMS, NUM_UNITS = 5, 12  # of those that are made here
NUM_FITS = 500  # by mean fields
NUM_CHAINS, NUM_TEMPERATURES = 16, 1000
LEAST_WARMUP = 50  # of CT-HMC, which tunes its step size then
# chains of AIS, which gain more from time than further temperatures do, draws of each chain of the others
SIZES = {
    "AIS": (25, 100, 400),
    "ST": (250, 1000),
    "Gibbs CT": (250, 1000, 4000),
    "CT-HMC": (250, 1000, 2500),
}
QUICK_SIZES = dict.fromkeys(SIZES, (20, 40))
NUM_RUNS, QUICK_RUNS = 6, 2


class Problem(NamedTuple):
    """Systems in the axes of their bases, where these have independent coordinates."""

    target: Relaxation
    base: Independent
    log_zeta: Tensor  # [systems]
    truth: Moments
    guess: Moments  # of the base

    def runs(self, count: int) -> Independent:
        """The base for `count` independent runs on every system."""
        return self.base.expand(torch.Size([count, *self.base.batch_shape]))


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_quick(parser)
    parser.add_argument("--data", type=Path, help="folder with systems and their moments")


def read(folder: Path) -> tuple[Relaxation, Moments]:
    """Relaxations and exact moments of s, of all systems in the folder."""
    paths = sorted(folder.glob("exact_recomputed_*.npz"))
    if not paths:
        raise DataError(f"there are no exact_recomputed_*.npz in {folder}: --data names the folder with them")
    exact = [np.load(path, allow_pickle=False) for path in paths]
    names = [path.with_name(path.name.replace("exact_recomputed", "params_and_moms")) for path in paths]
    if missing := [name for name in names if not name.exists()]:
        raise DataError(f"there is no {missing[0]}: it has the weights and biases of its system")
    given = [np.load(name, allow_pickle=False) for name in names]

    def stacked(files: list[Any], key: str) -> Tensor:
        return torch.stack([torch.from_numpy(file[key]) for file in files])

    weights = stacked(given, "weights")
    machine = BoltzmannMachine((weights + weights.mT) / 2, stacked(given, "biases"))
    mean, second = stacked(exact, "expc_s"), stacked(exact, "expc_ss")
    covariance = second - mean[..., :, None] * mean[..., None, :]
    states = Moments(stacked(exact, "log_norm_const_s"), mean, covariance)
    return Relaxation(machine, stacked(exact, "Q"), stacked(exact, "D")), states


def problem(relaxation: Relaxation, states: Moments, seed: int) -> Problem:
    """Pose the problem, with a base from mean-field fits.  [Graham 2018, (5.50)]"""
    machine = relaxation.machine
    rng = torch.Generator().manual_seed(seed)
    initial = 2 * torch.rand(NUM_FITS, *machine.biases.shape, dtype=torch.float64, generator=rng) - 1
    field = machine.mean_field(initial)
    independent = Moments(field.bound, field.mean, torch.diag_embed(1 - field.mean.square()))
    local = relaxation.moments(independent)  # [fits, systems, …]
    fits = Fit(local.mean, torch.linalg.cholesky(local.covariance), local.log_z)
    matched = [
        moment_matched_mixture(Fit(fits.mean[:, i], fits.root[:, i], fits.log_zeta[:, i]))
        for i in range(len(machine.biases))
    ]
    log_zeta = torch.stack([fit.log_zeta for fit in matched])
    variances, axes = torch.linalg.eigh(torch.stack([fit.covariance for fit in matched]))
    mean = apply(axes.mT, torch.stack([fit.mean for fit in matched]))
    target, base = relaxation.rotated(axes), Independent(Normal(mean, variances.sqrt()), 1)
    guess = Moments(log_zeta, mean, torch.diag_embed(variances))
    return Problem(target, base, log_zeta, target.moments(states), guess)


# of the problem, the size, the number of runs and the seed
Method = Callable[[Problem, int, int, int], Evidence]


def anneal(problem: Problem, num_chains: int, num_runs: int, seed: int) -> Evidence:
    base = problem.runs(num_runs)
    return ais(base, problem.target, NUM_TEMPERATURES, num_chains, seed=seed, progress=False)


def simulated(problem: Problem, num_samples: int, num_runs: int, seed: int) -> Evidence:
    options = tempering(problem, num_samples, seed) | {"num_temperatures": NUM_TEMPERATURES}
    return simulated_tempering(problem.runs(num_runs), problem.target, kernel=hmc, **options)


def gibbs(problem: Problem, num_samples: int, num_runs: int, seed: int) -> Evidence:
    options = tempering(problem, num_samples, seed)
    return gibbs_tempering(problem.runs(num_runs), problem.target, kernel=hmc, **options)


def joint(problem: Problem, num_samples: int, num_runs: int, seed: int) -> Evidence:
    options = tempering(problem, num_samples, seed)
    options["num_warmup"] = max(LEAST_WARMUP, options["num_warmup"])
    scale = torch.ones_like(problem.truth.mean[0])
    return tempered_hmc(problem.runs(num_runs), problem.target, num_steps=10, scale=scale, **options)


def hmc(density: Density) -> HMC:
    """With unit masses; the pilot run tunes the step size."""
    return HMC(density, step_size=0.5, num_steps=5, jitter=0.8)


def tempering(problem: Problem, num_samples: int, seed: int) -> dict[str, Any]:
    """What the three methods share."""
    return {
        "num_samples": num_samples,
        "num_chains": NUM_CHAINS,
        "num_warmup": num_samples // 10,
        "log_zeta": problem.log_zeta,
        "seed": seed,
        "progress": False,
    }


METHODS: dict[str, Method] = {"AIS": anneal, "ST": simulated, "Gibbs CT": gibbs, "CT-HMC": joint}


def moments(evidence: Evidence) -> Moments:
    """Estimates of every run and system."""
    assert evidence.position is not None and evidence.log_weight is not None
    share, z = evidence.log_weight.softmax(0).to(evidence.position), evidence.position
    mean = torch.einsum("n...,n...i->...i", share, z)
    second = torch.einsum("n...i,n...j->...ij", share[..., None] * z, z)
    return Moments(evidence.per_item.log_z, mean, second - mean[..., :, None] * mean[..., None, :])


def errors(found: Moments, truth: Moments) -> dict[str, dict[str, float]]:
    """RMSE over runs, systems and entries, and its standard error by the delta method."""
    squares = {
        "log_z": (found.log_z - truth.log_z).square(),
        "mean": (found.mean - truth.mean).square().mean(-1),
        "covariance": (found.covariance - truth.covariance).square().mean((-2, -1)),
    }
    report = {}
    for name, square in squares.items():
        rmse = float(square.mean().sqrt())
        report[name] = {"rmse": rmse, "se": float(square.std()) / square.numel() ** 0.5 / (2 * rmse)}
    return report


def measure(problem: Problem, name: str, size: int, num_runs: int, seed: int) -> dict[str, Any]:
    """Make all runs on all systems in one batch; its processor time is shared out equally."""
    evidence, seconds = timed(METHODS[name], problem, size, num_runs, seed)
    log_z, truth = evidence.per_item.log_z, problem.truth.log_z
    return {
        "size": size,
        "cpu_seconds": seconds,
        "cpu_seconds_of_one_run": seconds / log_z.numel(),
        "acceptance_rate": float(evidence.diagnostics["acceptance_rate"].mean()),
        "reported_error": float(evidence.per_item.std_error.square().mean().sqrt()),
        "rmse_of_all_runs_together": float((log_z.mean(0) - truth).square().mean().sqrt()),
        **errors(moments(evidence), problem.truth),
    }


def run(args: argparse.Namespace) -> int:
    if args.data is None:
        rng = torch.Generator().manual_seed(args.seed)
        machine = BoltzmannMachine.random(NUM_SYSTEMS, NUM_UNITS, generator=rng)
        relaxation, states = Relaxation.of(machine), machine.exact_moments()
    else:
        relaxation, states = read(args.data)
    posed = problem(relaxation, states, args.seed)
    sizes, num_runs = (QUICK_SIZES, QUICK_RUNS) if args.quick else (SIZES, NUM_RUNS)
    curves: dict[str, list[dict[str, Any]]] = {}
    for name in METHODS:
        curves[name] = [measure(posed, name, size, num_runs, args.seed) for size in sizes[name]]
        last = curves[name][-1]
        print(
            f"{name}: RMSE of log Z {last['log_z']['rmse']:.3f} ± {last['log_z']['se']:.3f} in "
            f"{last['cpu_seconds_of_one_run']:.2f} CPU seconds",
            flush=True,
        )
    settings = {
        "seed": args.seed,
        "num_runs": num_runs,
        "num_systems": len(posed.log_zeta),
        "num_units": relaxation.machine.num_units,
        "num_chains_of_tempering": NUM_CHAINS,
        "num_temperatures": NUM_TEMPERATURES,
    }
    result = {
        "settings": settings,
        "log_z": posed.truth.log_z.tolist(),
        "log_zeta": posed.log_zeta.tolist(),
        "base": errors(posed.guess, posed.truth),
        "methods": curves,
        # what a run of one second would have, RMSE falling with the root of time
        "rmse_at_one_second": {name: at_one_second(curve[-1]) for name, curve in curves.items()},
    }
    draw_boltzmann(result, write(args.out, result))
    return 0


def at_one_second(point: dict[str, Any]) -> dict[str, float]:
    root = point["cpu_seconds_of_one_run"] ** 0.5
    return {name: root * point[name]["rmse"] for name in ("log_z", "mean", "covariance")}
