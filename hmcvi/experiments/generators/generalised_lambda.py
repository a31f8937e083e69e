"""Four parameters of the generalised lambda law from 250 observations, exactly and by ABC.

Constrained HMC draws from the posterior given the observations themselves, HMC on the inputs from that given
values within a Gaussian ε of them.  All start where constrained HMC has settled.  Written are result.json
(posterior means, R-hat, effective draws per second, the largest |g(u) − y| of all draws) and figure.png.
[Graham 2018, §4.10.1, figures 4.7 and 4.8]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

from hmcvi.experiments.generators.runs import Method, exact_starts, race, settle
from hmcvi.experiments.results import configure_with_quick as configure
from hmcvi.experiments.results import write
from hmcvi.kernels import HMC, ConstrainedHMC
from hmcvi.models import Generator, generalised_lambda
from hmcvi.models.abc import abc_density
from hmcvi.models.quantile import quantile

__all__ = ["configure", "run"]

TRUTH = {"z1": 5.0, "z2": 1.0, "z3": 0.4, "z4": -0.1}
NUM_OBSERVED = 250
HALF = 0.334  # jitter of the number of leapfrogs: from 2/3 to 4/3 of it
SIZES = {"num_chains": 64, "settling": 150, "burned": 20, "constrained": 200, "abc": 1000}
QUICK_SIZES = {"num_chains": 4, "settling": 50, "burned": 1, "constrained": 4, "abc": 4}


def data(seed: int) -> Tensor:
    """[250] of the true law, with the numbers of seed 0 unless told otherwise"""
    uniform = torch.rand(NUM_OBSERVED, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return quantile(uniform.logit(), torch.tensor(list(TRUTH.values()), dtype=torch.float64))


def methods(generator: Generator, observed: Tensor, sizes: dict[str, int]) -> dict[str, Method]:
    """With the settings of the thesis; the numbers of transitions are for many chains at once."""
    constrained = ConstrainedHMC(generator, observed, step_size=0.6, num_steps=(5, 10), num_geodesic=4)
    found = {"constrained HMC": Method(constrained, sizes["burned"], sizes["constrained"])}
    for epsilon, step_size, num_steps in ((0.25, 2.5e-3, 30), (0.05, 5e-4, 60)):
        density = abc_density(generator, observed, epsilon)
        kernel = HMC(density, step_size, num_steps, jitter=HALF)
        thin = max(1, sizes["abc"] // 500)
        found[f"ABC-HMC, ε = {epsilon:g}"] = Method(kernel, sizes["abc"] // 10, sizes["abc"] // thin, thin)
    return found


def run(args: argparse.Namespace) -> int:
    from hmcvi.experiments.generators.figure import draw

    sizes = QUICK_SIZES if args.quick else SIZES
    generator, observed = generalised_lambda(NUM_OBSERVED), data(0)
    all_methods = methods(generator, observed, sizes)
    constrained = all_methods["constrained HMC"].kernel
    assert isinstance(constrained, ConstrainedHMC)
    start = exact_starts(constrained, sizes["num_chains"], args.seed)
    slow = constrained.replace(step_size=torch.tensor(0.05, dtype=torch.float64), num_steps=2)
    start = settle(slow, start, sizes["settling"], args.seed)
    start = settle(constrained, start, sizes["burned"], args.seed + 1)
    outcomes = {name: race(m, generator, observed, start, args.seed) for name, m in all_methods.items()}
    reports: dict[str, Any] = {name: outcome.report() for name, outcome in outcomes.items()}
    settings = {"seed": args.seed, "num_observed": NUM_OBSERVED, "truth": TRUTH, **sizes}
    result = {"settings": settings, "observed": observed.tolist(), "methods": reports}
    draw(outcomes, reports, TRUTH, write(args.out, result))
    return 0
