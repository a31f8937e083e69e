"""Pseudo-marginal chains on a normal model whose posterior is known.

x ~ N(0, I) in ten dimensions, z_m ~ N(x, σ² I), y_m ~ N(z_m, ε² I), m = 1 … 10, the z_m integrated out by
importance samples from their prior.  PM-MH, APM-MI+MH and APM-SS+MH run with many step sizes, APM-MI+SS and
APM-SS+SS with many widths, ten chains each from the prior.  Written are result.json (effective samples per
density evaluation and per second, acceptance, the longest run of rejections, errors against the exact
posterior, also of many chains that start from exact draws) and figure.png.
[Graham 2018, §3.6.1, figures 3.3 to 3.9]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.pseudo_marginal.figure import draw_gaussian_latent
from experiments.pseudo_marginal.runs import Outcome, explore
from experiments.report import configure_with_quick as configure
from experiments.report import write
from hmcvi.kernels import (
    GaussianProposal,
    ImportanceEstimator,
    Kernel,
    apm_mi_mh,
    apm_mi_ss,
    apm_ss_mh,
    apm_ss_ss,
    pm_mh,
)
from hmcvi.kernels.pseudo_marginal.kernels import PseudoMarginal

__all__ = ["configure", "run"]

DIM, NUM_DATA, SIGMA, EPSILON = 10, 10, 1.0, 2.0
NUM_CHAINS = 10
STEPS, WIDTHS = (0.1, 1.0), (1.0, 10.0)
# draws of each chain and settings tried, by the number of importance samples
SIZES = {1: (40_000, 10), 8: (20_000, 10), 32: (10_000, 10)}
QUICK_SIZES = {1: (200, 2), 8: (60, 2), 32: (40, 2)}


class Check(NamedTuple):
    num_chains: int
    num_steps: int


CHECK, QUICK_CHECK = Check(1000, 200), Check(50, 3)


class Method(NamedTuple):
    """A kernel as a function of the estimator and its one setting, and between which values that is tried."""

    make: Callable[[ImportanceEstimator, Tensor], Kernel]
    setting: str
    bounds: tuple[float, float]
    nums_importance: tuple[int, ...]


METHODS = {
    "PM-MH": Method(pm_mh, "step size", STEPS, (1, 8, 32)),
    "APM-MI+MH": Method(apm_mi_mh, "step size", STEPS, (1, 8, 32)),
    "APM-SS+MH": Method(apm_ss_mh, "step size", STEPS, (1,)),
    "APM-MI+SS": Method(apm_mi_ss, "width", WIDTHS, (1,)),
    "APM-SS+SS": Method(apm_ss_ss, "width", WIDTHS, (1,)),
}


class Model:
    """The data, drawn from the model with seed 0, and the posterior N(mean, variance · I) of x."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(1 + 2 * NUM_DATA, DIM, dtype=torch.float64, generator=generator)
        self.truth = noise[0]
        self.data = self.truth + SIGMA * noise[1 : 1 + NUM_DATA] + EPSILON * noise[1 + NUM_DATA :]
        total = SIGMA**2 + EPSILON**2
        self.mean = self.data.sum(0) / (NUM_DATA + total)
        self.variance = total / (NUM_DATA + total)

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z, y) up to a constant  [..., d], [..., M d] -> [...]"""
        z = z.unflatten(-1, (NUM_DATA, DIM))
        prior = ((z - x[..., None, :]) / SIGMA).square().sum((-2, -1))
        misfit = ((self.data - z) / EPSILON).square().sum((-2, -1))
        return -0.5 * (x.square().sum(-1) + prior + misfit)

    def prior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """loc and scale of p(z | x)"""
        loc = x.repeat(*[1] * (x.ndim - 1), NUM_DATA)
        return loc, torch.full_like(loc, SIGMA)

    def estimator(self, num_importance: int) -> ImportanceEstimator:
        proposal = GaussianProposal(self.prior, NUM_DATA * DIM)
        return ImportanceEstimator(self.log_joint, proposal, num_importance)

    def spread_of_estimates(self, num_importance: int, count: int = 2_000) -> float:
        """The standard deviation of log ε at the x that made the data."""
        generator, estimator = torch.Generator().manual_seed(0), self.estimator(num_importance)
        x = self.truth.expand(count, DIM)
        u = estimator.draw_auxiliary(x, generator)
        return float(estimator.log_estimate(x, u, estimator.prepare(x)).std())

    def draw(self, count: int, num_importance: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Exact draws of x given y, and of u given x and y, under ε(x, u) ρ(u).

        ε is a mean over samples: one of them, here the first, is distributed like z given x and y, the others
        like ρ.
        """
        x = torch.randn(count, DIM, dtype=torch.float64, generator=generator)
        x = self.mean + math.sqrt(self.variance) * x
        u = torch.randn(count, num_importance, NUM_DATA, DIM, dtype=torch.float64, generator=generator)
        precision = 1 / SIGMA**2 + 1 / EPSILON**2
        shift = (self.data - x[:, None]) / EPSILON**2 / precision
        u[:, 0] = (shift + u[:, 0] / math.sqrt(precision)) / SIGMA
        return x, u.flatten(1)

    def deviations(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """x − mean and (x − mean)² − variance, whose posterior means are zero  [chains, draws, d]"""
        centred = draws - self.mean
        return centred, centred.square() - self.variance


def from_prior(count: int, seed: int) -> Tensor:
    return torch.randn(count, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def check(model: Model, method: Method, num_importance: int, setting: float, sizes: Check, seed: int) -> Any:
    """Measure how far many chains go from exact draws, in standard errors; they need not converge."""
    kernel = method.make(model.estimator(num_importance), torch.tensor(setting, dtype=torch.float64))
    assert isinstance(kernel, PseudoMarginal)
    generator = torch.Generator().manual_seed(seed)
    state = kernel.at(*model.draw(sizes.num_chains, num_importance, generator))
    draws = []
    for _ in range(sizes.num_steps):
        state, _ = kernel.step(state, generator)
        draws.append(state.position)
    means = [values.mean(1) for values in model.deviations(torch.stack(draws, 1))]
    scores = [m.mean(0) / (m.std(0) / sizes.num_chains**0.5) for m in means]
    return {name: float(score.abs().max()) for name, score in zip(("mean", "variance"), scores, strict=True)}


def run(args: argparse.Namespace) -> int:
    sizes, model = QUICK_SIZES if args.quick else SIZES, Model()
    outcomes: dict[tuple[str, int], Outcome] = {}
    for name, method in METHODS.items():
        for num_importance in method.nums_importance:
            num_draws, num_settings = sizes[num_importance]
            grid = torch.linspace(*method.bounds, num_settings, dtype=torch.float64)
            print(f"{name}, N = {num_importance}", flush=True)
            make = partial(method.make, model.estimator(num_importance))
            initial = partial(from_prior, seed=args.seed)
            outcomes[name, num_importance] = explore(make, grid, initial, NUM_CHAINS, num_draws, args.seed)
    reports: dict[str, Any] = {
        f"{name}, N = {n}": outcome.report(model.deviations, n) for (name, n), outcome in outcomes.items()
    }
    for (name, n), report in zip(outcomes, reports.values(), strict=True):
        report["error_of_exact_draws_in_standard_errors"] = check(
            model,
            METHODS[name],
            n,
            report["best"]["setting"],
            QUICK_CHECK if args.quick else CHECK,
            args.seed,
        )
    best = {key: report["best"]["ess_per_1000_evaluations"] for key, report in reports.items()}
    result = {
        "settings": {"seed": args.seed, "num_chains": NUM_CHAINS, "quick": args.quick},
        "standard_deviation_of_log_estimates": {n: model.spread_of_estimates(n) for n in sizes},
        "gain_of_splitting_at_one_sample": best["APM-MI+MH, N = 1"] / best["PM-MH, N = 1"],
        "methods": reports,
    }
    draw_gaussian_latent(outcomes, reports, METHODS, model, write(args.out, result))
    print(
        f"APM-MI+MH has {result['gain_of_splitting_at_one_sample']:.1f} times the effective samples per "
        "density evaluation of PM-MH, one importance sample each"
    )
    return 0
