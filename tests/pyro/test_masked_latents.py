"""Latents whose log p is masked out, as by obs_mask, do not make the posterior improper."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Trace_ELBO

from hmcvi.pyro import AutoHMC, density_from_pyro

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
