"""Latents whose log p is masked out, as by obs_mask, do not make the posterior improper."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO

from hmcvi.pyro import AmortizedHMC, AutoHMC, AutoSemiHMC, density_from_pyro
from tests.support.problems import F64
from tests.support.pyro_models import log_weights, number
from tests.support.statistics import assert_evidence, assert_mean

SEEN = torch.tensor([True, True, False, True, False])
X = torch.tensor([1.0, 0.5, 0.0, -0.3, 0.0])
Y = torch.tensor([0.8, 0.9, 1.5, 0.1, -0.7])


def imputed() -> None:
    """x ~ N(0, 1) of which three of five are seen, y ~ N(x, 1)."""
    with pyro.plate("data", 5):
        x = pyro.sample("x", dist.Normal(0.0, 1.0), obs=X, obs_mask=SEEN)
        pyro.sample("y", dist.Normal(x, 1.0), obs=Y)


def log_evidence() -> torch.Tensor:
    whole, missing = dist.Normal(0.0, 1.0), dist.Normal(0.0, 2.0**0.5)
    seen = whole.log_prob(X[SEEN]).sum() + dist.Normal(X, 1.0).log_prob(Y)[SEEN].sum()
    return seen + missing.log_prob(Y[~SEEN]).sum()


@pytest.mark.parametrize("vectorized", [False, True])
def test_the_bound_of_a_normal_posterior_is_the_evidence(vectorized: bool) -> None:
    pyro.clear_param_store()
    guide = AutoHMC(imputed)
    elbo = Trace_ELBO(num_particles=4 if vectorized else 1, vectorize_particles=vectorized)
    loss = SVI(imputed, guide, pyro.optim.Adam({"lr": 0.01}), elbo).step()
    assert -loss == pytest.approx(float(log_evidence()), abs=0.05)
    draws = guide.sample_posterior(2000)["x_unobserved"]
    assert ((draws.mean(0) - Y / 2)[~SEEN].abs() < 5 * 0.5**0.5 / 2000**0.5).all()


def test_masked_coordinates_are_standard_normal() -> None:
    density = density_from_pyro(imputed)
    z = torch.randn(3, 5)
    expected = dist.Normal(0.0, 1.0).log_prob(z)[:, SEEN].sum(-1)
    changed = torch.where(SEEN, 0.0, z)
    rest = density.log_prob(changed) - dist.Normal(0.0, 1.0).log_prob(changed)[:, SEEN].sum(-1)
    torch.testing.assert_close(density.log_prob(z), expected + rest)


def in_minibatches(size: int | None = None) -> None:
    """mu ~ N(0, 1), x_n ~ N(mu, 1) of which some are seen, y_n ~ N(x_n, 1)."""
    mu = pyro.sample("mu", dist.Normal(number(0.0), 1.0))
    with pyro.plate("data", 5, subsample_size=size) as index:
        x = pyro.sample("x", dist.Normal(mu, 1.0), obs=X[index].to(F64), obs_mask=SEEN[index])
        pyro.sample("y", dist.Normal(x, 1.0), obs=Y[index].to(F64))


def log_evidence_given_mean() -> torch.Tensor:
    """x_n where it is seen and y_n elsewhere, integrated over mu, and y_n given x_n."""
    given = dist.Normal(X, 1.0).log_prob(Y)[SEEN].sum()
    covariance = 1.0 + torch.where(SEEN, 1.0, 2.0).diag()
    first = dist.MultivariateNormal(torch.zeros(5), covariance).log_prob(torch.where(SEEN, X, Y))
    return (given + first).to(F64)


def semi(**settings: int) -> AutoSemiHMC:
    pyro.clear_param_store()
    guide = AutoSemiHMC(in_minibatches, **settings)  # type: ignore[arg-type]
    guide()
    return guide


def test_local_latents_of_a_normal_posterior_are_fitted_exactly() -> None:
    weights = log_weights(in_minibatches, semi(num_hmc=0, num_particles=1), 500, 1)
    assert float((weights - log_evidence_given_mean()).abs().mean()) < 0.03


def test_chains_of_entries_weigh_the_evidence() -> None:
    guide = semi(num_hmc=2, num_particles=3)
    assert guide.local is not None
    with torch.no_grad():
        guide.local.log_scale.fill_(0.3)
        guide.local.loc.fill_(0.2)
    assert_evidence(log_weights(in_minibatches, guide, 10_000, 1), log_evidence_given_mean())


def test_minibatches_with_masks_of_their_own_estimate_the_bound() -> None:
    guide = semi(num_hmc=2, num_particles=3)

    def bounds(indices: list[int]) -> torch.Tensor:
        chosen = {"data": torch.tensor(indices)}
        held, inside = poutine.condition(in_minibatches, chosen), poutine.condition(guide, chosen)
        return log_weights(held, inside, 4000, 1, len(indices))

    parts = torch.stack([bounds([n]) for n in range(5)])
    assert_mean(parts.mean(0) - bounds([0, 1, 2, 3, 4]), 0.0)


def test_a_chain_for_each_entry() -> None:
    """Whatever the encoder says of entries that are seen."""

    def encoder() -> dist.TorchDistribution:
        return dist.Normal((Y / 2)[:, None].to(F64) + 0.1, 1.2 * 0.5**0.5).to_event(1)

    def imputed_double() -> None:
        with pyro.plate("data", 5):
            x = pyro.sample("x", dist.Normal(number(0.0), 1.0), obs=X.to(F64), obs_mask=SEEN)
            pyro.sample("y", dist.Normal(x, 1.0), obs=Y.to(F64))

    pyro.clear_param_store()
    guide = AmortizedHMC(imputed_double, encoder, num_hmc=2)
    guide()
    assert_evidence(log_weights(imputed_double, guide, 10_000, 1), float(log_evidence()))
