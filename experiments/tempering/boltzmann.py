"""Relaxed Boltzmann machines with many modes: log Z and moments by annealing and by tempering.

Densities are mixtures of 2ⁿ normal distributions whose moments are known.  --data names the folder with
params_and_moms_*.npz and exact_recomputed_*.npz (n = 30), to which random machines are added until there are
ten; without it five random machines of 12 units are made.  The base is the normal distribution with the
moments of a mixture of mean-field fits, and ζ their sum.  A run is made of pieces, each with a warm-up of its
own, whose draws are pooled.  Written are result.json (RMSE of log Z, mean and covariance over systems and
independent runs, against processor time), figure.png and figure-samples.png, draws of a relaxation.
[Graham 2018, §5.6.1, figures 5.1 and 5.2]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.models.boltzmann import BoltzmannMachine, Moments, Relaxation
from experiments.report import configure_with_quick, timed, write
from experiments.tempering.figure import draw_boltzmann, draw_samples
from experiments.tempering.systems import Problem, completed, problem, read
from hmcvi.density import Density
from hmcvi.evidence import (
    Evidence,
    ais,
    gibbs_tempering,
    simulated_tempering,
    tempered_hmc,
)
from hmcvi.kernels import HMC

NUM_SYSTEMS, NUM_UNITS = 5, 12  # of those that are made without data
NUM_CHAINS, NUM_TEMPERATURES = 16, 1000
LEAST_WARMUP = 50  # of CT-HMC, which tunes its step size then
# chains of AIS in the pieces of a run, draws of each chain of the others
PIECES = {
    "AIS": (25, 25, 50, 100, *[200] * 8),
    "ST": (125, 125, 250, 500, *[1000] * 14),
    "Gibbs CT": (500, 500, 1000, 2000, *[4000] * 10),
    "CT-HMC": (250, 250, 500, 1000, *[2000] * 12),
}
QUICK_PIECES = dict.fromkeys(PIECES, (20, 20))
LONGER = (5000, 10000)  # temperatures of AIS with 100 chains, as in the thesis
NUM_RUNS = 1  # on each system
SHOWN_UNITS, SHOWN_DRAWS = 20, 10_000  # of the relaxation whose draws are shown


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_quick(parser)
    parser.add_argument("--data", type=Path, help="folder with systems and their moments")


# of the problem, the size, the number of runs and the seed
Method = Callable[[Problem, int, int, int], Evidence]


def anneal(
    problem: Problem, num_chains: int, num_runs: int, seed: int, num_temperatures: int = NUM_TEMPERATURES
) -> Evidence:
    base = problem.runs(num_runs)
    return ais(base, problem.target, num_temperatures, num_chains, seed=seed, progress=False)


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


class Sums(NamedTuple):
    """What an estimate needs of its draws: log Z = log Σ w − log Σ w_0, weighted moments.  [runs, systems]

    Weights are those of the target and of the base, or importance weights and ones.
    """

    log_top: Tensor
    log_bottom: Tensor
    mean: Tensor  # [runs, systems, n]
    second: Tensor  # [runs, systems, n, n]


def sums(evidence: Evidence) -> Sums:
    assert evidence.position is not None and evidence.log_weight is not None
    log_weight, z = evidence.log_weight, evidence.position
    share, log_top = log_weight.softmax(0).to(z), log_weight.logsumexp(0)
    mean = torch.einsum("n...,n...i->...i", share, z)
    second = torch.einsum("n...i,n...j->...ij", share[..., None] * z, z)
    return Sums(log_top, log_top - evidence.per_item.log_z, mean, second)


def pooled(pieces: list[Sums]) -> Moments:
    """Estimates of every run and system from the draws of all pieces together."""
    top, bottom, mean, second = (torch.stack(values) for values in zip(*pieces, strict=True))
    share = top.softmax(0)[..., None]
    mean, second = (share * mean).sum(0), (share[..., None] * second).sum(0)
    log_z = top.logsumexp(0) - bottom.logsumexp(0)
    return Moments(log_z, mean, second - mean[..., :, None] * mean[..., None, :])


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


def measure(
    problem: Problem, name: str, sizes: Sequence[int], num_runs: int, seed: int
) -> list[dict[str, Any]]:
    """Errors after each piece; all runs on all systems are one batch, whose time is shared out equally."""
    pieces: list[Sums] = []
    curve: list[dict[str, Any]] = []
    total = 0.0
    for index, size in enumerate(sizes):
        evidence, seconds = timed(METHODS[name], problem, size, num_runs, seed + index)
        pieces.append(sums(evidence))
        total += seconds
        curve.append(point(problem, pieces, evidence, total) | {"size": sum(sizes[: index + 1])})
    return curve


def point(problem: Problem, pieces: list[Sums], evidence: Evidence, seconds: float) -> dict[str, Any]:
    found = pooled(pieces)
    return {
        "cpu_seconds": seconds,
        "cpu_seconds_of_one_run": seconds / found.log_z.numel(),
        "acceptance_rate": float(evidence.diagnostics["acceptance_rate"].mean()),
        **errors(found, problem.truth),
    }


def longer(problem: Problem, num_runs: int, seed: int) -> list[dict[str, Any]]:
    """AIS with more temperatures instead of more chains."""
    curve = []
    for num_temperatures in LONGER:
        evidence, seconds = timed(anneal, problem, 100, num_runs, seed, num_temperatures)
        found = point(problem, [sums(evidence)], evidence, seconds)
        curve.append(found | {"num_temperatures": num_temperatures, "size": 100})
    return curve


def run(args: argparse.Namespace) -> int:
    if args.data is None:
        rng = torch.Generator().manual_seed(args.seed)
        machine = BoltzmannMachine.random(NUM_SYSTEMS, NUM_UNITS, generator=rng)
        relaxation, states = Relaxation.of(machine), machine.exact_moments()
    else:
        relaxation, states = read(args.data)
        if not args.quick:
            relaxation, states = completed(relaxation, states, args.seed)
    posed = problem(relaxation, states, args.seed)
    sizes = QUICK_PIECES if args.quick else PIECES
    curves: dict[str, list[dict[str, Any]]] = {}
    for name in METHODS:
        curves[name] = measure(posed, name, sizes[name], NUM_RUNS, args.seed)
        last = curves[name][-1]
        print(
            f"{name}: RMSE of log Z {last['log_z']['rmse']:.3f} ± {last['log_z']['se']:.3f} in "
            f"{last['cpu_seconds_of_one_run']:.2f} CPU seconds",
            flush=True,
        )
    more = {} if args.quick else {"AIS, more temperatures": longer(posed, NUM_RUNS, args.seed)}
    settings = {
        "seed": args.seed,
        "num_runs": NUM_RUNS,
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
        "methods": curves | more,
        "cpu_seconds": sum(curve[-1]["cpu_seconds"] for curve in (curves | more).values()),
    }
    figure = write(args.out, result)
    draw_boltzmann(result, figure)
    rng = torch.Generator().manual_seed(args.seed)
    shown = Relaxation.of(BoltzmannMachine.random(SHOWN_UNITS, generator=rng))
    draw_samples(shown.sample(SHOWN_DRAWS, rng)[:, -2:], figure.with_name("figure-samples.png"))
    return 0
