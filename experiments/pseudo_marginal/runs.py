"""Chains of one method for many values of its setting at once, and what their draws are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.report import timed
from hmcvi.kernels import Kernel
from hmcvi.sampling import sample
from hmcvi.sampling.diagnostics import arviz

BURN_IN = 0.2  # share of the draws that are thrown away
TRACE = 10_000  # draws of one chain that are shown
Deviations = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Outcome:
    """draws: [settings, chains, draws, d]; stats: {name: [settings, chains, draws]}; seconds for one."""

    grid: Tensor  # [settings]
    draws: Tensor
    stats: dict[str, Tensor]
    seconds: float

    def report(self, deviations: Deviations, num_importance: int) -> dict[str, Any]:
        """A curve over the settings, and more about the best of them.

        An evaluation is one of the joint density, of which an estimate takes `num_importance`.
        """
        evaluations = num_importance * self.stats["num_evaluations"].double().sum((1, 2))
        ess = torch.tensor([effective(draws) for draws in self.draws])
        efficiency = 1000 * ess / evaluations
        best = int(efficiency.argmax())
        return {
            "grid": self.grid.tolist(),
            "ess_per_1000_evaluations": efficiency.tolist(),
            "ess_per_second": (ess / self.seconds).tolist(),
            "acceptance_rate": self._rate("target"),
            "auxiliary_acceptance_rate": self._rate("auxiliary"),
            "best": {
                "setting": float(self.grid[best]),
                "ess_per_1000_evaluations": float(efficiency[best]),
                "ess_per_second": float(ess[best]) / self.seconds,
                "longest_run_of_rejections": longest_run(rejections(self.stats)[best]),
                **errors(self.draws[best], deviations),
            },
        }

    def best(self, report: dict[str, Any]) -> Tensor:
        """Draws of the best setting  [chains, draws, d]"""
        return self.draws[report["grid"].index(report["best"]["setting"])]

    def _rate(self, which: str) -> list[float] | None:
        """Mean acceptance at each setting; None for a slice, which accepts always."""
        bare = "acceptance_rate" if which == "target" else ""
        values = self.stats.get(f"acceptance_rate_{which}", self.stats.get(bare))
        return None if values is None else values.mean((1, 2)).tolist()


def explore(
    make: Callable[[Tensor], Kernel],
    grid: Tensor,
    initial: Callable[[int], Tensor],
    num_chains: int,
    num_draws: int,
    seed: int,
) -> Outcome:
    """Run `num_chains` chains for each setting of the grid, in one batch; drop the first draws."""
    setting = grid.repeat_interleave(num_chains)[:, None]
    kernel, position = make(setting), initial(len(setting))
    draws, seconds = timed(sample, kernel, position, num_draws, seed=seed, progress=False, check=False)
    first = int(BURN_IN * num_draws)
    fold = (len(grid), num_chains)
    return Outcome(
        grid,
        draws.position[:, first:].unflatten(0, fold),
        {name: value[:, first:].unflatten(0, fold) for name, value in draws.stats.items()},
        (1 - BURN_IN) * seconds / len(grid),
    )


def effective(draws: Tensor) -> float:
    """The mean over variables of the effective number of draws, all chains together.  [chains, draws, d]"""
    return float(np.mean([arviz().ess(values.numpy()) for values in draws.unbind(-1)]))


def errors(draws: Tensor, deviations: Deviations) -> dict[str, float]:
    """How many standard errors the means and variances of the worst variables are off, and R-hat."""
    worst = []
    for values in deviations(draws):
        scores = [float(v.mean()) / float(arviz().mcse(v.numpy())) for v in values.unbind(-1)]
        worst.append(max(map(abs, scores)))
    rhat = max(float(arviz().rhat(v.numpy())) for v in draws.unbind(-1))
    return {"mean_error_in_mcse": worst[0], "variance_error_in_mcse": worst[1], "r_hat": rhat}


def rejections(stats: Mapping[str, Tensor]) -> Tensor:
    """Whether x stayed where it was; never for a slice, which accepts always.  [..., chains, draws]"""
    return ~stats.get("accepted_target", stats.get("accepted", torch.tensor(True))).bool()


def longest_run(rejected: Tensor) -> int:
    """The largest number of transitions in a row in which a chain did not move.  [chains, draws]"""
    longest = current = torch.zeros(len(rejected), dtype=torch.int64)
    for column in rejected.T:
        current = (current + 1) * column
        longest = torch.maximum(longest, current)
    return int(longest.max())
