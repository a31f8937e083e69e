"""Why annealing misses part of the evidence of the radon regression, although its weights look well.

The spread σ_b of the coefficients has a long tail, in which the coefficients' own coordinates are narrow,
their widths falling as 1/σ_b.  Leapfrog steps that suit most of the posterior are unstable there, and no
chain enters.  AIS runs with steps chosen by its pilot run, with ten times the temperatures, and with steps
that are stable further out; SMC learns steps and masses from its particles at each temperature.  All report
which share of the evidence its weights put into intervals of log σ_b, beside the exact share by quadrature.
Written are result.json, after each, and figure.png; what result.json already holds is not run again.
[Graham 2018, §5.6.3]
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.models import MultilevelRegression
from experiments.report import timed, write
from experiments.tempering.figure import draw_tails
from experiments.tempering.radon import configure, hmc, log_integral, read
from hmcvi.density import Density
from hmcvi.dynamics.metrics import DiagonalMetric
from hmcvi.evidence import Fit, ais, fit_advi, smc
from hmcvi.kernels import HMC, Compose, Kernel

__all__ = ["configure", "run"]

LOG_SIGMA_B = 2  # place among the parameters
EDGES = (-3.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 5.0)  # of log σ_b
STEP = 0.15  # stable where log σ_b < 2.4, given the scales of the base
POINTS = 10  # pieces of an interval by Simpson's rule


class Setting(NamedTuple):
    kernel: Callable[[Fit], Callable[[Density], Kernel]]
    num_temperatures: int
    num_chains: int


def small_steps(fit: Fit) -> Callable[[Density], Kernel]:
    """Steps as given: a composition is not tuned."""
    metric = DiagonalMetric(-fit.stddev.log())
    return lambda density: Compose(HMC(density, STEP, num_steps=30, metric=metric, jitter=0.8))


SETTINGS = {
    "tuned steps": Setting(hmc, 1000, 1000),
    "small steps": Setting(small_steps, 1000, 200),
    "ten times the temperatures": Setting(hmc, 10_000, 100),
}
QUICK = {
    "tuned steps": Setting(hmc, 40, 20),
    "small steps": Setting(small_steps, 20, 20),
}
SMC = "SMC"
SMC_RUNS, SMC_PARTICLES = 8, 2048  # each with a seed of its own
QUICK_SMC = (2, 128)


def log_marginal(model: MultilevelRegression, log_sigma_b: Tensor) -> Tensor:
    """log p(y, log σ_b), by quadrature over the two other scales.  [] -> []"""

    def others(scales: Tensor) -> Tensor:
        first, last = scales.unbind(-1)
        return model.log_marginal(torch.stack([first, log_sigma_b.expand_as(first), last], -1))

    return log_integral(Density(others), 2)


def log_masses(model: MultilevelRegression) -> Tensor:
    """log ∫ p(y, log σ_b) of the intervals between EDGES"""
    masses = []
    for low, high in itertools.pairwise(EDGES):
        grid = torch.linspace(low, high, POINTS + 1, dtype=torch.float64)
        values = torch.stack([log_marginal(model, place) for place in grid])
        weight = torch.ones_like(grid)  # 1, 4, 2, 4, …, 4, 1
        weight[1:-1:2], weight[2:-1:2] = 4, 2
        masses.append((values + weight.log()).logsumexp(0) + ((grid[1] - grid[0]) / 3).log())
    return torch.stack(masses)


def measure(
    model: MultilevelRegression, fit: Fit, setting: Setting, exact: Tensor, seed: int
) -> dict[str, Any]:
    """Estimate log Z, and in each interval the share of the exact Z with its error."""
    make, num_temperatures, num_chains = setting
    options: dict[str, Any] = {"kernel": make(fit), "seed": seed, "progress": False}
    found, seconds = timed(ais, fit, model, num_temperatures, num_chains, **options)
    assert found.position is not None and found.log_weight is not None
    log_sigma_b, weight = found.position[:, LOG_SIGMA_B], (found.log_weight - exact).exp()
    shares = []
    for low, high in itertools.pairwise(EDGES):
        inside = weight.where((log_sigma_b > low) & (log_sigma_b <= high), 0.0)
        shares.append({"share": float(inside.mean()), "se": float(inside.std()) / num_chains**0.5})
    return {
        "num_temperatures": num_temperatures,
        "num_chains": num_chains,
        "log_z": float(found.log_z),
        "std_error": float(found.std_error),
        "ess": float(found.ess),
        "pareto_k": float(found.pareto_k),
        "largest_log_sigma_b": float(log_sigma_b.max()),
        "shares": shares,
        "cpu_seconds": seconds,
    }


def measure_smc(
    model: MultilevelRegression, fit: Fit, exact: Tensor, seed: int, num_runs: int, num_particles: int
) -> dict[str, Any]:
    """The same by independent runs of SMC, whose draws all weigh Z/N; errors by the spread of the runs."""
    found, seconds = timed(
        lambda: [
            smc(fit, model, num_particles, mass="diagonal", seed=seed + index, progress=False)
            for index in range(num_runs)
        ]
    )
    log_z = torch.stack([one.log_z for one in found])
    positions = [one.position for one in found if one.position is not None]
    log_sigma_b = torch.stack(positions)[..., LOG_SIGMA_B]
    share = (log_z - exact).exp()  # of each run
    shares = []
    for low, high in itertools.pairwise(EDGES):
        each = share * ((log_sigma_b > low) & (log_sigma_b <= high)).double().mean(-1)
        shares.append({"share": float(each.mean()), "se": float(each.std()) / num_runs**0.5})
    return {
        "num_runs": num_runs,
        "num_particles": num_particles,
        "log_z": float(exact + share.mean().log()),
        "std_error": float(share.std() / share.mean()) / num_runs**0.5,
        "log_z_of_runs": log_z.tolist(),
        "std_error_by_islands": [float(one.std_error) for one in found],
        "num_temperatures": [len(one.diagnostics["betas"]) - 1 for one in found],
        "largest_log_sigma_b": float(log_sigma_b.max()),
        "shares": shares,
        "cpu_seconds": seconds,
    }


def runs_in(file: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Those that a result of the same settings already has."""
    content = json.loads(file.read_text()) if file.exists() else {}
    return content["runs"] if content.get("settings") == settings else {}


def run(args: argparse.Namespace) -> int:
    model = read(args.data)
    exact = log_integral(Density(model.log_marginal), 3)
    shares = (log_masses(model) - exact).exp()
    fit = fit_advi(model, torch.zeros(model.dim, dtype=torch.float64), num_steps=2000, seed=args.seed)
    settings = {"seed": args.seed, "quick": args.quick, "step": STEP, "edges": list(EDGES)}
    result: dict[str, Any] = {
        "settings": settings,
        "exact": {"log_z": float(exact), "shares": shares.tolist()},
        "base": {"mean": float(fit.mean[LOG_SIGMA_B]), "sd": float(fit.stddev[LOG_SIGMA_B])},
        "runs": runs_in(args.out / "result.json", settings),
    }
    annealed = QUICK if args.quick else SETTINGS
    for name in [SMC, *annealed]:
        if name in result["runs"]:
            continue
        if name == SMC:
            sizes = QUICK_SMC if args.quick else (SMC_RUNS, SMC_PARTICLES)
            found = measure_smc(model, fit, exact, args.seed, *sizes)
        else:
            found = measure(model, fit, annealed[name], exact, args.seed)
        result["runs"][name] = found
        write(args.out, result)
        print(
            f"{name}: log Z {found['log_z']:.3f} ± {found['std_error']:.3f}, log σ_b up to "
            f"{found['largest_log_sigma_b']:.2f}",
            flush=True,
        )
    draw_tails(result, args.out / "figure.png")
    return 0
