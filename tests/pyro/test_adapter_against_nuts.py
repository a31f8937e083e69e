"""`KernelAdapter` and Pyro's NUTS have the same means and variances, within their Monte Carlo errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size
from torch import Tensor

from hmcvi.kernels import HMC
from hmcvi.pyro import KernelAdapter
from tests.support.pyro_models import eight_schools, logistic_data, logistic_regression
from tests.support.statistics import Z

NUM_WARMUP, NUM_DRAWS = 300, 1500
MODELS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    "eight schools": (eight_schools, ()),
    "logistic regression": (logistic_regression, logistic_data(15, 2)),
}


def draws(kernel: Any, args: tuple[Any, ...]) -> Tensor:
    """Unconstrained but for scales, whose logarithms have finite moments.  [n, d]"""
    pyro.set_rng_seed(0)
    mcmc = MCMC(kernel, NUM_DRAWS, warmup_steps=NUM_WARMUP, disable_progbar=True)
    mcmc.run(*args)
    sites = {name: value.log() if name == "tau" else value for name, value in mcmc.get_samples().items()}
    return torch.cat([sites[name].reshape(NUM_DRAWS, -1) for name in sorted(sites)], -1)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_means_and_variances_are_those_of_nuts(name: str) -> None:
    model, args = MODELS[name]
    found = [draws(kernel, args) for kernel in (KernelAdapter(model, HMC, num_steps=10), NUTS(model))]
    centre = torch.cat(found).mean(0)
    for moment in (lambda x: x, lambda x: (x - centre).square()):
        means, errors = zip(*(estimate(moment(x)) for x in found), strict=True)
        gap = (means[0] - means[1]).abs() / (errors[0].square() + errors[1].square()).sqrt()
        assert (gap < Z).all()


def estimate(values: Tensor) -> tuple[Tensor, Tensor]:
    """Means of correlated draws [n, d] and their standard errors.  [d]"""
    ess = effective_sample_size(values[None])
    return values.mean(0), values.std(0) / ess.sqrt()
