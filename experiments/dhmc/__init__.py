"""Discontinuous HMC against Metropolis within Gibbs, on a density with jumps and on a posterior of counts.

Both start scattered and spend the same number of density evaluations, a gradient counting as three.  Written
are result.json (effective samples per evaluation and per second, R-hat, errors against the exact answers) and
figure.png.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.dhmc.problems import DHMC, METROPOLIS, Abundance, Problem, Staircase
from experiments.results import configure_with_quick as configure
from experiments.results import write
from hmcvi.kernels import Kernel
from hmcvi.sampling import Draws, SamplingWarning, sample
from hmcvi.sampling.diagnostics import arviz

__all__ = ["configure", "run"]

GRADIENT_COST = 3  # evaluations: one forwards, about two backwards
NUM_CHAINS, BUDGET, QUICK_BUDGET = 64, 60_000, 4_000  # evaluations of each chain
BURN_IN = 0.25  # share of the evaluations that are thrown away


@dataclass(frozen=True)
class Outcome:
    """What one kernel made of one problem.

    draws: {quantity: [chains, draws]}; cost: evaluations per draw of one chain; seconds: of the processor,
    for the draws that were kept.
    """

    draws: dict[str, Tensor]
    cost: int
    seconds: float
    acceptance: float

    def report(self, exact: dict[str, float]) -> dict[str, Any]:
        """One entry per quantity: estimate, error in standard errors, R-hat, ESS and what it cost."""
        chains, draws = next(iter(self.draws.values())).shape
        total = chains * draws * self.cost
        quantities = {}
        for name, values in self.draws.items():
            ess = float(arviz().ess(values.numpy()))
            error = float(values.mean(1).std()) / chains**0.5  # chains are independent, whatever their ESS
            quantities[name] = {
                "estimate": float(values.mean()),
                "exact": exact[name],
                "standard_error": error,
                "deviation_in_standard_errors": (float(values.mean()) - exact[name]) / error,
                "r_hat": float(arviz().rhat(values.numpy())),
                "ess": ess,
                "ess_per_1000_evaluations": 1000 * ess / total,
                "ess_per_second": ess / self.seconds,
            }
        return {
            "num_draws": draws,
            "evaluations_per_draw": self.cost,
            "seconds": self.seconds,
            "acceptance_rate": self.acceptance,
            "quantities": quantities,
        }


def run(args: argparse.Namespace) -> int:
    from experiments.dhmc.figure import draw

    budget = QUICK_BUDGET if args.quick else BUDGET
    problems: list[Problem] = [Staircase(), Abundance()]
    outcomes = {
        problem.name: {
            name: race(problem, kernel, budget, args.seed) for name, kernel in problem.kernels().items()
        }
        for problem in problems
    }
    result = {
        "settings": {
            "seed": args.seed,
            "num_chains": NUM_CHAINS,
            "evaluations_per_chain": budget,
            "gradient_cost": GRADIENT_COST,
            "burn_in": BURN_IN,
        },
        "problems": {p.name: summary(p, outcomes[p.name]) for p in problems},
    }
    draw(problems, outcomes, result["problems"], write(args.out, result))
    for name, methods in result["problems"].items():
        print(f"{name}: {methods['ratio']:.1f} times the effective samples per evaluation")
    return 0


def race(problem: Problem, kernel: Kernel, budget: int, seed: int) -> Outcome:
    """Draws of every quantity for `budget` evaluations per chain, less the burn-in."""
    start = problem.start(NUM_CHAINS, torch.Generator().manual_seed(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        first = sample(kernel, start, 1, seed=seed, progress=False)
    cost = evaluations(first)
    num_burn, num_draws = (max(1, int(share * budget / cost)) for share in (BURN_IN, 1 - BURN_IN))
    burnt = first.resume(num_burn, progress=False)
    begin = time.process_time()
    kept = burnt.resume(num_draws, progress=False)
    seconds = time.process_time() - begin
    rates = [value for name, value in kept.stats.items() if name.startswith("acceptance_rate")]
    return Outcome(
        problem.quantities(kept.position[:, len(burnt) :]),
        cost,
        seconds,
        float(torch.stack(rates).mean()),
    )


def evaluations(draws: Draws) -> int:
    """What one transition of one chain costs."""
    gradients = draws.stats.get("num_gradients", torch.zeros_like(draws.stats["num_evaluations"]))
    return int((draws.stats["num_evaluations"] + GRADIENT_COST * gradients)[0, 0])


def summary(problem: Problem, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """The reports, and how many times more effective samples DHMC has of its slowest quantity."""
    exact = problem.exact()
    reports = {name: outcome.report(exact) for name, outcome in outcomes.items()}
    least = {
        name: min(quantity["ess_per_1000_evaluations"] for quantity in report["quantities"].values())
        for name, report in reports.items()
    }
    return {**reports, "ratio": least[DHMC] / least[METROPOLIS]}
