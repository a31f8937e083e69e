"""Means and variances of known posteriors, by every kind of tuned HMC, within their Monte Carlo error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hmcvi import Density, sample
from hmcvi.flows import two_stage
from hmcvi.kernels import HMC
from hmcvi.sampling import Draws, Warmup
from hmcvi.sampling.diagnostics import arviz
from tests.support.posteriors import (
    Reference,
    eight_schools,
    ill_conditioned_normal,
    logistic_regression,
    school_quantities,
    stored_reference,
)
from tests.support.problems import F64

# at the usual 0.8 the long tail of log τ makes a few of ten thousand transitions diverge, in Stan too
DIAGONAL, DENSE = Warmup(target_acceptance=0.95), Warmup(target_acceptance=0.9, mass="dense")
KINDS: dict[str, tuple[Callable[[Density], HMC], Warmup]] = {
    "tuned length": (lambda density: HMC(density, step_size=0.1), DIAGONAL),
    "tuned length, dense mass": (lambda density: HMC(density, step_size=0.1), DENSE),
    "fixed length": (lambda density: HMC(density, 0.1, num_steps=7, jitter=0.5), DIAGONAL),
    "persistent": (lambda density: HMC(density, 0.1, num_steps=3, persistence=0.7), DENSE),
    "two stages": (lambda density: HMC(density, 0.1, 3, jitter=1.0, integrator=two_stage), DIAGONAL),
}
over_kinds = pytest.mark.parametrize("kind", KINDS)


def monte_carlo_error(values: Tensor) -> Tensor:
    """ArviZ's error of the mean.  [chains, draws, k] -> [k]"""
    arrays = (np.ascontiguousarray(value) for value in values.movedim(-1, 0).numpy())
    return torch.tensor([float(arviz().mcse(array)) for array in arrays], dtype=F64)


def assert_agrees(values: Tensor, reference: Reference, limit: float = 4.0) -> None:
    """R-hat < 1.01, and means and variances within 4 errors of both sides.  values: [chains, draws, k]"""
    rhat = [float(arviz().rhat(np.ascontiguousarray(v))) for v in values.movedim(-1, 0).numpy()]
    assert max(rhat) < 1.01, rhat
    squares = (values - values.mean((0, 1))).square()
    for name, draws, exact, error in (
        ("mean", values, reference.mean, reference.mean_error),
        ("variance", squares, reference.variance, reference.variance_error),
    ):
        own = monte_carlo_error(draws)
        deviation = (draws.mean((0, 1)) - exact).abs() / (own.square() + error.square()).sqrt()
        assert (deviation < limit).all(), f"{name}: {deviation} errors off"


def run(kind: str, density: Density, init: Tensor, num_samples: int, num_warmup: int = 400) -> Draws:
    make, warmup = KINDS[kind]
    return sample(make(density), init, num_samples, num_warmup, warmup=warmup, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tuned length", "fixed length"])
def test_eight_schools(kind: str) -> None:
    init = torch.randn(16, 10, dtype=F64, generator=torch.Generator().manual_seed(1))
    draws = run(kind, eight_schools(), init, 1000)
    assert_agrees(school_quantities(draws.variables), stored_reference("eight_schools"))


@pytest.mark.slow
@over_kinds
def test_logistic_regression(kind: str) -> None:
    init = 0.1 * torch.randn(16, 8, dtype=F64, generator=torch.Generator().manual_seed(1))
    draws = run(kind, logistic_regression(), init, 800)
    assert_agrees(draws.position, stored_reference("logistic_regression"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tuned length, dense mass", "persistent"])
def test_an_ill_conditioned_normal(kind: str) -> None:
    """Fifty correlated dimensions whose variances span a factor of 10⁶: a dense mass makes them one."""
    density, mean, covariance = ill_conditioned_normal()
    init = 3 * torch.randn(64, 50, dtype=F64, generator=torch.Generator().manual_seed(1))
    draws = run(kind, density, init, 400, num_warmup=500)
    zero = torch.zeros(50, dtype=F64)
    assert_agrees(draws.position, Reference(mean, zero, covariance.diagonal(), zero))
