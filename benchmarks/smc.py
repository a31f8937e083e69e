"""Sequential Monte Carlo against annealed importance sampling: gradients for the same error of log Z.

Problems of known evidence, each repeated as independent data items.  `smc` runs with its defaults; `ais` with
several schedules and numbers of temperatures, of which the one that needs fewest gradients counts.  Gradients
are those that log_prob was asked for; values, what it was asked for without a gradient, are given beside.
The variance of an estimate is inversely proportional to them, so that those for another error follow from
one run: gradients · (RMSE / error)².  The pilot run of `ais`, in which it learns what `smc` learns on the
way, is given by itself, for one item.  One record for each problem.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.measuring import Record, quickly, repeatable, set_threads

if TYPE_CHECKING:
    from hmcvi.evidence import Evidence
    from tests.support.evidence_cases import Case

ERROR = 0.05
CHAINS = 32
SCHEDULES = [("sigmoidal", 40), ("adaptive", 10), ("adaptive", 20), ("adaptive", 40), ("adaptive", 100)]


def configure(parser: argparse.ArgumentParser) -> None:
    repeatable(parser, 1000, threads=1)
    quickly(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    set_threads(args.threads)
    import hmcvi
    from hmcvi.evidence import ais, smc
    from tests.support.evidence_cases import mixture_case, normal_case, vae_case

    cases: dict[str, Callable[[int], Case]] = {
        "normal in 1 dimension": lambda items: normal_case(1, items),
        "normal in 10 dimensions": lambda items: normal_case(10, items),
        "normal in 50 dimensions": lambda items: normal_case(50, items),
        "two modes": mixture_case,
        "linear VAE": vae_case,
    }
    schedules = SCHEDULES[:2] if args.quick else SCHEDULES
    for name, case in cases.items():
        ours = measured(smc, case(args.repeats))
        annealed = {
            f"{schedule} {count}": measured(
                ais, case(args.repeats), num_temperatures=count, num_chains=CHAINS, schedule=schedule
            )
            for schedule, count in schedules
        }
        best = min(annealed, key=lambda label: annealed[label]["gradients_for_error"])
        theirs = annealed[best]
        alone = measured(ais, case(1), num_temperatures=40, num_chains=CHAINS, schedule="adaptive")
        pilot = alone["counted"] - CHAINS * 40
        yield {
            "problem": name,
            "repeats": args.repeats,
            "error": ERROR,
            "smc": ours,
            "ais": annealed,
            "ais_best": best,
            "ais_pilot_gradients": pilot,
            "smc_over_ais": round(ours["gradients_for_error"] / theirs["gradients_for_error"], 3),
            "smc_over_ais_with_pilot": round(
                ours["gradients_for_error"] / (theirs["gradients_for_error"] + pilot), 3
            ),
            "versions": {"hmcvi": hmcvi.__version__},
        }


def measured(estimator: Callable[..., Evidence], case: Case, **settings: Any) -> Record:
    """RMSE over items, its ratio to the reported error, gradients of one item and those for ERROR."""
    import hmcvi

    counted, values = 0, 0

    def log_prob(z: Any) -> Any:
        nonlocal counted, values
        counted += z[..., 0].numel() if z.requires_grad else 0
        values += 0 if z.requires_grad else z[..., 0].numel()
        return case.target.log_prob(z)

    began = time.process_time()
    evidence = estimator(case.base, hmcvi.Density(log_prob), progress=False, **settings)
    seconds = time.process_time() - began
    items = len(case.log_z)
    deviation = evidence.per_item.log_z - case.log_z
    rmse = float(deviation.square().mean().sqrt())
    reported = float(evidence.per_item.std_error.square().mean().sqrt())
    gradients = counted / items
    if (
        "num_chains" in settings
    ):  # without the pilot run, which all items share: the first force and the moves
        gradients = float(evidence.diagnostics["num_gradients"]) / items + settings["num_chains"]
    return {
        "rmse": round(rmse, 5),
        "bias": round(float(deviation.mean()), 5),
        "rmse_over_reported": round(rmse / reported, 3),
        "gradients": round(gradients),
        "gradients_for_error": round(gradients * (rmse / ERROR) ** 2),
        "values_for_error": round(values / items * (rmse / ERROR) ** 2),
        "counted": counted,
        "temperatures": len(evidence.diagnostics["betas"]) - 1,
        "cpu_seconds": round(seconds, 2),
    }
