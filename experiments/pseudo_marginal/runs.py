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
AT_ONCE = 20  # settings in a batch
Deviations = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Outcome:
    """Measures over the settings of one method, and draws of the best."""

    points: list[dict[str, Any]]  # one for each setting
    best: dict[str, Any]  # the one with most effective draws per evaluation, and its errors
    trace: Tensor  # the first variable of all its draws [chains, draws]
    cpu_seconds: float

    def report(self) -> dict[str, Any]:
        """Curves over the settings, and the best of them."""
        names = [name for name in self.points[0] if name != "setting"]
        return {
            "cpu_seconds": self.cpu_seconds,
            "grid": [point["setting"] for point in self.points],
            **{name: [point[name] for point in self.points] for name in names},
            "best": self.best,
        }


def explore(
    make: Callable[[Tensor], Kernel],
    grid: Tensor,
    initial: Callable[[int, int], Tensor],
    num_chains: int,
    num_draws: int,
    seed: int,
    num_importance: int,
    deviations: Deviations,
) -> Outcome:
    """Run `num_chains` chains for each setting of the grid, some settings at once; drop the first draws.

    initial: of the number of chains and a seed
    """
    points: list[dict[str, Any]] = []
    best, kept, total = -1.0, torch.empty(0), 0.0
    for index, settings in enumerate(grid.split(AT_ONCE)):
        kernel, batch = make(settings.repeat_interleave(num_chains)[:, None]), seed + index
        position = initial(len(settings) * num_chains, batch)
        draws, seconds = timed(sample, kernel, position, num_draws, seed=batch, progress=False, check=False)
        total += seconds
        late, fold = slice(int(BURN_IN * num_draws), None), (len(settings), num_chains)
        positions = draws.position[:, late].unflatten(0, fold)
        stats = {name: value[:, late].unflatten(0, fold) for name, value in draws.stats.items()}
        each = (1 - BURN_IN) * seconds / len(settings)
        for place, setting in enumerate(settings.tolist()):
            own = {name: value[place] for name, value in stats.items()}
            point = {"setting": setting, **measure(positions[place], own, each, num_importance)}
            points.append(point)
            if point["ess_per_1000_evaluations"] > best:
                best, kept = point["ess_per_1000_evaluations"], positions[place].clone()
    winner = next(point for point in points if point["ess_per_1000_evaluations"] == best)
    return Outcome(points, winner | errors(kept, deviations), kept[..., 0], total)


def measure(
    draws: Tensor, stats: Mapping[str, Tensor], seconds: float, num_importance: int
) -> dict[str, Any]:
    """What the draws of one setting are worth.  draws: [chains, draws, d]; stats: {name: [chains, draws]}

    An evaluation is one of the joint density, of which an estimate takes `num_importance`.  The measure of
    all chains together counts their disagreement, those of single chains, given by mean and spread, do not.
    """
    evaluations = num_importance * stats["num_evaluations"].double().sum(-1)
    ess = effective(draws)
    single = torch.tensor([effective(chain[None]) for chain in draws], dtype=torch.float64)
    per_evaluation, per_second = 1000 * single / evaluations, len(draws) * single / seconds
    return {
        "ess_per_1000_evaluations": 1000 * ess / float(evaluations.sum()),
        "ess_per_cpu_second": ess / seconds,
        "single_chains_per_1000_evaluations": spread(per_evaluation),
        "single_chains_per_cpu_second": spread(per_second),
        "acceptance_rate": rate(stats, "target"),
        "auxiliary_acceptance_rate": rate(stats, "auxiliary"),
        "longest_run_of_rejections": longest_run(rejections(stats)),
    }


def spread(values: Tensor) -> dict[str, float]:
    """Mean and standard deviation over chains."""
    return {"mean": float(values.mean()), "sd": float(values.std())}


def rate(stats: Mapping[str, Tensor], which: str) -> dict[str, float] | None:
    """Acceptance of single chains; None for a slice, which accepts always."""
    bare = "acceptance_rate" if which == "target" else ""
    values = stats.get(f"acceptance_rate_{which}", stats.get(bare))
    return None if values is None else spread(values.double().mean(-1))


def effective(draws: Tensor) -> float:
    """The effective number of draws for the mean of a variable, averaged over them.  [chains, draws, d]

    Zero for chains that never moved, of which ArviZ would count every draw.
    """
    if (draws == draws[:, :1]).all():
        return 0.0
    return float(np.mean([arviz().ess(values.numpy(), method="mean") for values in draws.unbind(-1)]))


def errors(draws: Tensor, deviations: Deviations) -> dict[str, float]:
    """How many standard errors the means and variances of the worst variables are off, and R-hat."""
    worst = []
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that never moved
        for values in deviations(draws):
            scores = [float(v.mean()) / float(arviz().mcse(v.numpy())) for v in values.unbind(-1)]
            worst.append(max(map(abs, scores)))
        rhat = max(float(arviz().rhat(v.numpy())) for v in draws.unbind(-1))
    return {"mean_error_in_mcse": worst[0], "variance_error_in_mcse": worst[1], "r_hat": rhat}


def rejections(stats: Mapping[str, Tensor]) -> Tensor:
    """Whether x stayed where it was; never for a slice, which accepts always.  [..., chains, draws]"""
    accepted = stats.get("accepted_target", stats.get("accepted"))
    return torch.zeros(1, 1, dtype=torch.bool) if accepted is None else ~accepted.bool()


def longest_run(rejected: Tensor) -> int:
    """The largest number of transitions in a row in which a chain did not move.  [chains, draws]"""
    longest = 0
    for chain in rejected.numpy():
        moves = np.flatnonzero(~chain)
        longest = max(longest, int(np.diff(moves, prepend=-1, append=len(chain)).max()) - 1)
    return longest
