"""Four parameters of the generalised lambda distribution from 250 observations, exactly and by ABC.

Constrained HMC draws from the posterior given the observations themselves, HMC on the inputs from that given
values within a Gaussian ε of them, and the modified ABC-MCMC of McVinish (2012) from that given values in a
cube around them, both starting where constrained HMC has ended.  The reference is importance
sampling with the likelihood, whose quantile function is inverted numerically.  Written are result.json
(posterior means, R-hat, effective draws per second, the largest |g(u) − y| of all draws), figure.png and
figure-data.png.  [Graham 2018, §4.10.1, figures 4.6 to 4.8]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from experiments.generators.figure import draw, draw_sample
from experiments.generators.reference import generalised_lambda_likelihood, reference
from experiments.generators.runs import Method, race_all, result
from experiments.models import generalised_lambda
from experiments.models.quantile import quantile
from experiments.report import configure_with_quick as configure
from experiments.report import write
from hmcvi.kernels import HMC, ConstrainedHMC, IntervalMetropolis
from hmcvi.models import Generator
from hmcvi.models.abc import abc_density

__all__ = ["configure", "run"]

TRUTH = {"z1": 5.0, "z2": 1.0, "z3": 0.4, "z4": -0.1}
NUM_OBSERVED = 250
MANY = 10_000  # draws of the true distribution, for its density
JITTER = 0.334  # of the number of leapfrogs: from 2/3 to 4/3 of it
SIZES = {
    "num_chains": 16,
    "warmup": 90,
    "constrained": 300,
    "abc_warmup": 300,
    "abc": 2000,
    "intervals_warmup": 1000,
    "intervals": 2000,
    "reference": 20_000,
}
QUICK_SIZES = {
    "num_chains": 4,
    "warmup": 3,
    "constrained": 4,
    "abc_warmup": 4,
    "abc": 4,
    "intervals_warmup": 4,
    "intervals": 4,
    "reference": 500,
}
THIN = 10  # transitions of intervals for each that is kept


def data(seed: int, count: int | None = None) -> Tensor:
    """Draw from the true distribution.  [250]"""
    uniform = torch.rand(
        count or NUM_OBSERVED, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return quantile(uniform.logit(), torch.tensor(list(TRUTH.values()), dtype=torch.float64))


def methods(
    generator: Generator, observed: Tensor, constrained: ConstrainedHMC, sizes: dict[str, int]
) -> dict[str, Method]:
    """With the settings of the thesis; warm-up tunes their step sizes."""
    found = {
        "constrained HMC": Method(constrained, generator, observed, sizes["warmup"], sizes["constrained"])
    }
    for epsilon, step_size, num_steps in ((0.25, 2.5e-3, 30), (0.05, 5e-4, 60)):
        kernel = HMC(abc_density(generator, observed, epsilon), step_size, num_steps, jitter=JITTER)
        found[f"ABC-HMC, ε = {epsilon:g}"] = Method(
            kernel, generator, observed, sizes["abc_warmup"], sizes["abc"]
        )
    epsilon = 0.1
    box = abc_density(generator, observed, epsilon, kernel="box")
    found[f"modified ABC-MCMC, ε = {epsilon:g}"] = Method(
        IntervalMetropolis(box, generator, observed, epsilon, step_size=0.05),
        generator,
        observed,
        sizes["intervals_warmup"],
        sizes["intervals"],
        THIN,
    )
    return found


def run(args: argparse.Namespace) -> int:
    sizes = QUICK_SIZES if args.quick else SIZES
    generator, observed = generalised_lambda(NUM_OBSERVED), data(0)
    constrained = ConstrainedHMC(generator, observed, step_size=0.6, num_steps=(5, 10), num_geodesic=4)
    initial = constrained.find_initial(sizes["num_chains"], args.seed)
    outcomes = race_all(methods(generator, observed, constrained, sizes), initial, args.seed)
    likelihood, near = generalised_lambda_likelihood(observed), outcomes["constrained HMC"].position
    exact = reference(generator, likelihood, near, sizes["reference"], args.seed)
    settings = {"seed": args.seed, "num_observed": NUM_OBSERVED, "truth": TRUTH, **sizes}
    found = result(settings, observed, outcomes, exact)
    figure = write(args.out, found)
    draw(outcomes, exact, found["methods"], TRUTH, figure)
    draw_sample(observed, data(1, MANY), figure.with_name("figure-data.png"))
    return 0
