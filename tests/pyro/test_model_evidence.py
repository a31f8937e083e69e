"""Evidence of Pyro models whose evidence is known, from the prior and from guides."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoMultivariateNormal
from torch import Tensor

import hmcvi
from hmcvi.evidence import fit_advi
from hmcvi.kernels import HMC
from hmcvi.pyro import density_from_pyro, evidence
from tests.support.problems import F64
from tests.support.pyro_models import (
    CATEGORIES,
    COINS,
    GAUSSIAN,
    CorrelatedGaussian,
    EightSchoolsPosterior,
    beta_bernoulli,
    conjugate_gaussian,
    dirichlet_categorical,
    eight_schools,
)
from tests.support.statistics import assert_mean


def log_beta(concentration: Tensor) -> Tensor:
    """log B, the integral of Π p^{a−1} over the simplex.  [..., K] -> [...]"""
    return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))


def gaussian_evidence() -> Tensor:
    covariance = torch.eye(6, dtype=F64) + 4.0
    return dist.MultivariateNormal(torch.zeros(6, dtype=F64), covariance).log_prob(GAUSSIAN)


def coins_evidence() -> Tensor:
    heads = COINS.sum(0)
    posterior = torch.stack([heads, 20 - heads], -1) + 1.1
    return (log_beta(posterior) - log_beta(torch.full((2,), 1.1, dtype=F64))).sum()


def categories_evidence() -> Tensor:
    prior = torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    return log_beta(prior + torch.bincount(CATEGORIES)) - log_beta(prior)


CONJUGATE: dict[str, tuple[Any, Tensor, Tensor]] = {
    "gaussian": (conjugate_gaussian, GAUSSIAN, gaussian_evidence()),
    "dirichlet-categorical": (dirichlet_categorical, CATEGORIES, categories_evidence()),
}


def assert_known(result: hmcvi.evidence.Evidence, known: Tensor | float, precise: float) -> None:
    assert 0 < result.std_error < precise
    assert (result.log_z - known).abs() < 4 * result.std_error


@pytest.mark.slow
@pytest.mark.parametrize("name", CONJUGATE)
def test_annealing_from_the_prior(name: str) -> None:
    model, data, known = CONJUGATE[name]
    result = evidence(model, data, num_temperatures=50, num_chains=100, progress=False)
    assert_known(result, known, 0.1)


def test_eight_schools_from_the_prior() -> None:
    result = evidence(eight_schools, method="importance", num_samples=2000)
    assert_known(result, EightSchoolsPosterior().log_evidence(), 0.1)


def one_step(density: hmcvi.Density) -> HMC:
    return HMC(density, 0.5, num_steps=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("importance", {"num_samples": 2000}),
        ("gibbs_tempering", {"num_samples": 100, "num_chains": 64, "num_warmup": 20, "kernel": one_step}),
    ],
)
def test_other_estimators(method: str, settings: dict[str, Any]) -> None:
    assert_known(evidence(conjugate_gaussian, GAUSSIAN, method=method, **settings), gaussian_evidence(), 0.1)


@pytest.mark.slow
def test_a_trained_guide_is_a_base() -> None:
    guide = AutoMultivariateNormal(beta_bernoulli, init_scale=1.0)
    svi = SVI(beta_bernoulli, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO(4, vectorize_particles=True))
    for _ in range(100):
        svi.step(COINS)
    result = evidence(
        beta_bernoulli, COINS, base=guide, num_temperatures=10, num_chains=128, progress=False, seed=1
    )
    assert_known(result, coins_evidence(), 0.05)


def test_a_fit_is_a_base() -> None:
    gaussian = CorrelatedGaussian()
    density = density_from_pyro(gaussian)
    fit = fit_advi(density, torch.zeros(20, dtype=F64), full_rank=True, num_steps=300)
    result = evidence(gaussian, base=fit, num_temperatures=20, num_chains=64, progress=False)
    assert_known(result, gaussian.log_evidence(), 0.1)


def test_the_prior_draws_what_it_prices() -> None:
    """E[r(z) / p(z)] = 1 for a distribution r narrower than the prior p."""
    density = density_from_pyro(beta_bernoulli, COINS)
    draws = density.prior.sample([2000])
    narrow = dist.Normal(draws[:1000].mean(0), 0.8 * draws[:1000].std(0)).to_event(1)
    ratio = (narrow.log_prob(draws[1000:]) - density.prior.log_prob(draws[1000:])).exp()
    assert_mean(ratio, 1.0)
    p = density.constrain(draws)["p"]
    assert_mean(p, 0.5)
    assert_mean((p - 0.5).square(), float(dist.Beta(1.1, 1.1).variance))


def test_the_seed_decides() -> None:
    first, again, other = (
        evidence(conjugate_gaussian, GAUSSIAN, method="importance", num_samples=200, seed=seed).log_z
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"method must be one of ais, .* got 'nested'"):
        evidence(eight_schools, method="nested")
    with pytest.raises(ValueError, match=r"discrete sample sites: 'count'. Sum them out"):
        evidence(lambda: pyro.sample("count", dist.Poisson(3.0)))
    with pytest.raises(RuntimeError, match="found no latent variables"):
        evidence(lambda: None)
    with pytest.raises(RuntimeError, match="AutoDiagonalNormal has not seen its model yet"):
        evidence(eight_schools, base=AutoDiagonalNormal(eight_schools))
    with pytest.raises(TypeError, match="the base must be a distribution"):
        evidence(eight_schools, base=AutoDelta(eight_schools))
    blind = AutoDiagonalNormal(poutine.block(eight_schools, hide=["mu"]))
    blind()
    with pytest.raises(ValueError, match="the base is a guide of"):
        evidence(eight_schools, base=blind)
    with pytest.raises(ValueError, match="'mu', 'tau', 'eta' is scaled or masked and not normalised"):
        evidence(poutine.scale(eight_schools, scale=0.5))
