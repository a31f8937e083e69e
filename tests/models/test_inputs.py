"""Distributions of inputs, and common ones made of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Exponential, HalfCauchy, LogNormal, Uniform

from hmcvi.models import inputs
from hmcvi.models.inputs import HyperbolicSecant, Inputs, Logistic, Normal
from tests.support.manifolds import CDFS
from tests.support.problems import F64

DISTRIBUTIONS: dict[str, Inputs] = {
    "normal": Normal(),
    "logistic": Logistic(),
    "hyperbolic secant": HyperbolicSecant(),
}
over_distributions = pytest.mark.parametrize("name", DISTRIBUTIONS)
GRID = torch.linspace(-40, 40, 400_001, dtype=F64)


@over_distributions
def test_integrates_to_one_with_unit_variance(name: str) -> None:
    density = DISTRIBUTIONS[name].log_prob(GRID).exp()
    moments = [float(torch.trapezoid(density * GRID**power, GRID)) for power in range(3)]
    assert moments == pytest.approx([1, 0, 1], abs=1e-8)


@over_distributions
def test_quantiles_are_the_inverse_of_the_distribution(name: str) -> None:
    distribution, p = DISTRIBUTIONS[name], torch.linspace(0, 1, 1001, dtype=F64)[1:-1]
    u = distribution.quantile(p)
    torch.testing.assert_close(CDFS[type(distribution)](u), p)
    mass = torch.cumulative_trapezoid(distribution.log_prob(GRID).exp(), GRID)
    places = torch.searchsorted(GRID, u)
    torch.testing.assert_close(mass[places - 1], p, rtol=0, atol=2e-4)


@over_distributions
def test_far_out_the_density_is_finite(name: str) -> None:
    far = torch.tensor([-300.0, 300.0], dtype=F64)
    assert DISTRIBUTIONS[name].log_prob(far).isfinite().all()
    assert DISTRIBUTIONS[name].quantile(torch.tensor([1e-300], dtype=F64)).isfinite().all()


def reparameterised(name: str, p: Tensor) -> tuple[Tensor, Distribution]:
    """Table D.1: the transformed p-quantile of the input, and the distribution it should be a quantile of."""
    logistic, secant, normal = (one.quantile(p) for one in (Logistic(), HyperbolicSecant(), Normal()))
    return {
        "exponential": (inputs.exponential(logistic, 2.5), Exponential(2.5)),
        "uniform": (inputs.uniform(logistic, -1.0, 3.0), Uniform(-1.0, 3.0)),
        "half-Cauchy": (inputs.half_cauchy(secant, 1.5), HalfCauchy(1.5)),
        "log-normal": (inputs.log_normal(normal, 0.3, 0.8), LogNormal(0.3, 0.8)),
    }[name]


@pytest.mark.parametrize("name", ["exponential", "uniform", "half-Cauchy", "log-normal"])
def test_common_distributions_in_unit_variance_inputs(name: str) -> None:
    """Increasing maps carry quantiles to quantiles.  [Graham 2018, table D.1]"""
    p = torch.linspace(0, 1, 501, dtype=F64)[1:-1]
    value, expected = reparameterised(name, p)
    assert (value.diff() > 0).all()
    torch.testing.assert_close(expected.cdf(value), p, rtol=1e-5, atol=1e-6)


def test_shapes_are_those_given() -> None:
    assert Normal().shape == () and Logistic(2, 3).shape == (2, 3)
    assert math.isclose(inputs.LOGISTIC_SCALE**2 * math.pi**2 / 3, 1.0)
