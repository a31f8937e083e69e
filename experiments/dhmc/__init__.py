"""Discontinuous HMC against Metropolis within Gibbs, on a density with jumps and on a posterior of counts.

Also: discontinuous HMC that evaluates only the factors that change, each evaluation counted as one of the
density, and event-driven dynamics on the density with jumps, where they are exact.

All start scattered and spend the same number of density evaluations, a gradient counting as three.  Written
are result.json (effective samples per evaluation and per second, R-hat, errors against the exact answers) and
figure.png.
"""

from __future__ import annotations

import argparse
from typing import Any

from experiments.dhmc.figure import draw
from experiments.dhmc.problems import DHMC, FACTORED, METROPOLIS, Abundance, Problem, Staircase
from experiments.dhmc.runs import BURN_IN, GRADIENT_COST, NUM_CHAINS, Outcome, race
from experiments.report import configure_with_quick as configure
from experiments.report import write

__all__ = ["configure", "run"]

BUDGET, QUICK_BUDGET = 60_000, 4_000  # evaluations of each chain


def run(args: argparse.Namespace) -> int:
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


def summary(problem: Problem, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """The reports, and how many times more effective samples DHMC has of its slowest quantity."""
    exact = problem.exact()
    reports = {name: outcome.report(exact) for name, outcome in outcomes.items()}
    least = {
        name: min(quantity["ess_per_1000_evaluations"] for quantity in report["quantities"].values())
        for name, report in reports.items()
    }
    return {
        **reports,
        "ratio": least[DHMC] / least[METROPOLIS],
        "ratio_by_factors": least[FACTORED] / least[METROPOLIS],
    }
