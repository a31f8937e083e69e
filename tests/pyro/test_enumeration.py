"""Discrete latents that are summed out: guides under TraceEnum_ELBO, kernels and densities."""

from __future__ import annotations

import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC, SVI, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from torch import Tensor

import hmcvi
from hmcvi.kernels import HMC
from hmcvi.pyro import AutoHMC, KernelAdapter, density_from_pyro, vectorized_mcmc
from hmcvi.pyro.density import make_density
from tests.support.problems import F64
from tests.support.pyro_models import number
from tests.support.statistics import assert_evidence

DATA = torch.tensor([-1.2, 0.3, 1.9, 2.4], dtype=F64)
WEIGHTS = torch.tensor([0.3, 0.7], dtype=F64)


@config_enumerate
def mixture(data: Tensor) -> None:
    """gap ~ N(0, 1); each x_i ~ N(0, 1) or N(gap, 1), by a label of its own."""
    gap = pyro.sample("gap", dist.Normal(number(0.0), 1.0))
    with pyro.plate("data", len(data)):
        label = pyro.sample("label", dist.Categorical(WEIGHTS))
        pyro.sample("x", dist.Normal(gap * label, 1.0), obs=data)


@config_enumerate
def coin(data: Tensor) -> None:
    """One label for all data, and a latent that depends on it."""
    label = pyro.sample("label", dist.Bernoulli(number(0.4)))
    centre = pyro.sample("centre", dist.Normal(3 * label - 1, 1.0))
    with pyro.plate("data", len(data)):
        pyro.sample("x", dist.Normal(centre, 1.0), obs=data)


def log_joint_of_mixture(gap: Tensor) -> Tensor:
    """log p(x, gap)  [n] -> [n]"""
    means = torch.stack([torch.zeros_like(gap), gap], -1)[..., None, :]
    parts = dist.Normal(means, 1.0).log_prob(DATA[:, None]) + WEIGHTS.log()
    return dist.Normal(number(0.0), 1.0).log_prob(gap) + parts.logsumexp(-1).sum(-1)


def log_joint_of_coin(centre: Tensor) -> Tensor:
    prior = torch.stack(
        [dist.Normal(mean, 1.0).log_prob(centre) + number(p).log() for mean, p in ((-1.0, 0.6), (2.0, 0.4))]
    ).logsumexp(0)
    return prior + dist.Normal(centre[:, None], 1.0).log_prob(DATA).sum(-1)


CASES = {"mixture": (mixture, log_joint_of_mixture), "coin": (coin, log_joint_of_coin)}


def log_evidence(case: str) -> float:
    line = torch.linspace(-12, 12, 20_001, dtype=F64)
    return float(torch.trapezoid(CASES[case][1](line).exp(), line).log())


@pytest.mark.parametrize("case", CASES)
def test_the_density_is_the_sum_over_labels(case: str) -> None:
    model, exact = CASES[case]
    with pytest.warns(UserWarning, match="vmap cannot run Pyro's enumeration"):
        density = density_from_pyro(model, DATA)
    points = torch.tensor([[-1.0], [0.2], [3.0]], dtype=F64)
    torch.testing.assert_close(density.log_prob(points), exact(points[:, 0]))


def test_the_prior_sums_too() -> None:
    density = make_density("test", coin, (DATA,), {}, warn=False)
    points = torch.tensor([[-1.0], [2.5]], dtype=F64)
    likelihood = dist.Normal(points, 1.0).log_prob(DATA).sum(-1)
    assert density.base is not None
    torch.testing.assert_close(density.base.log_prob(points), log_joint_of_coin(points[:, 0]) - likelihood)


@pytest.mark.filterwarnings("ignore:the model does not vectorise")
@pytest.mark.parametrize("case", CASES)
def test_guides_bound_the_evidence_under_enumeration(case: str) -> None:
    model = CASES[case][0]
    guide = AutoHMC(model, num_hmc=2)
    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
    for _ in range(3):
        assert svi.step(DATA) < 100
    with torch.no_grad():
        guide.base.root.mul_(1.3)
        log_weights = -torch.tensor([elbo.loss(model, guide, DATA) for _ in range(400)], dtype=F64)
    assert_evidence(log_weights, log_evidence(case), least_ess=200)
    assert set(guide.sample_posterior(3)) == {"gap" if case == "mixture" else "centre"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the model does not vectorise")
def test_kernels_sum_them_out() -> None:
    line = torch.linspace(-8, 8, 4001, dtype=F64)
    share = log_joint_of_mixture(line).softmax(0)
    mean, sd = share @ line, (share @ line.square() - (share @ line).square()).sqrt()
    settings = {"step_size": 0.5, "num_steps": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hmcvi.SamplingWarning)
        draws = vectorized_mcmc(
            mixture, HMC, DATA, num_chains=10, num_samples=40, warmup_steps=0, settings=settings, seed=0
        )["gap"]
    assert float((draws.mean() - mean).abs() / sd) < 0.5
    mcmc = MCMC(KernelAdapter(mixture, HMC), num_samples=5, warmup_steps=5, disable_progbar=True)
    mcmc.run(DATA)
    assert set(mcmc.get_samples()) == {"gap"}


def test_without_enumeration_they_are_refused() -> None:
    plain = mixture.__wrapped__  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"discrete sample sites: 'label'.*config_enumerate"):
        SVI(plain, AutoHMC(plain), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(DATA)
