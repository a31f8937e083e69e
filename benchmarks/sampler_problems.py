"""Twenty-one posteriors on which samplers are compared from bad starts, with their moments."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks import sampler_hierarchies as hierarchies
from benchmarks import sampler_regressions as regressions
from benchmarks.sampler_problem import Problem

REFERENCES = Path(__file__).with_name("sampler_references.json")

PROBLEMS = {
    make.__name__: make
    for make in (
        hierarchies.eight_schools,
        regressions.kidiq,
        regressions.sblri,
        regressions.scaled_regression,
        regressions.correlated_regression,
        regressions.separated_logistic,
        regressions.autoregression,
        regressions.arma,
        regressions.garch,
        regressions.heteroscedastic,
        regressions.poisson_regression,
        regressions.weibull_survival,
        hierarchies.gp_poisson,
        hierarchies.ordered_mixture,
        hierarchies.lotka_volterra,
        hierarchies.centred_hierarchy,
        hierarchies.noncentred_hierarchy,
        hierarchies.horseshoe,
        hierarchies.funnel,
        hierarchies.student_t,
        hierarchies.rosenbrock,
    )
}


def reference(name: str, problem: Problem) -> dict[str, np.ndarray]:
    """mean, sd and their Monte Carlo errors mean_error, sd_error.  [d]"""
    if problem.exact is not None:
        mean, sd = problem.exact
        return {"mean": mean, "sd": sd, "mean_error": 0 * mean, "sd_error": 0 * sd}
    return {key: np.array(value) for key, value in json.loads(REFERENCES.read_text())[name].items()}
