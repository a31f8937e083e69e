"""Chains of one kernel on one problem: what their draws are worth and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.dhmc.problems import Problem
from experiments.report import acceptance_rates, timed
from hmcvi.kernels import Kernel
from hmcvi.sampling import Draws, sample
from hmcvi.sampling.diagnostics import arviz

GRADIENT_COST = 3  # evaluations: one forwards, about two backwards
NUM_CHAINS = 64
COUNTED = 20  # draws whose cost is averaged
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


def race(problem: Problem, kernel: Kernel, budget: int, seed: int) -> Outcome:
    """Draw every quantity for `budget` evaluations per chain, less the burn-in."""
    initial = problem.initial(NUM_CHAINS, torch.Generator().manual_seed(seed))
    first = sample(kernel, initial, COUNTED, seed=seed, progress=False, check=False)
    cost = evaluations(first)
    num_burn, num_draws = (max(1, int(share * budget / cost)) for share in (BURN_IN, 1 - BURN_IN))
    burnt = first.resume(max(1, num_burn - len(first)), progress=False)
    kept, seconds = timed(burnt.resume, num_draws, progress=False)
    rates = list(acceptance_rates(kept.stats).values())
    return Outcome(
        problem.quantities(kept.position[:, len(burnt) :]),
        cost,
        seconds,
        float(torch.stack(rates).mean()),
    )


def evaluations(draws: Draws) -> int:
    """What one transition of one chain costs, on average; an evaluation of factors counts as one of all."""
    prices = {"num_evaluations": 1, "num_local_evaluations": 1, "num_gradients": GRADIENT_COST}
    counts = (
        price * draws.stats[name].double().mean() for name, price in prices.items() if name in draws.stats
    )
    return round(float(sum(counts)))
