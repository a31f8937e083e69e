"""The multilevel regression against torch's distributions, and its marginal against the whole covariance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import HalfCauchy, MultivariateNormal, Normal

from experiments.models import MultilevelRegression
from tests.support.problems import F64

GROUP = torch.tensor([2, 0, 1, 2, 2, 0, 3])
RNG = torch.Generator().manual_seed(0)
Y, X = torch.randn(7, dtype=F64, generator=RNG), torch.randn(7, 2, dtype=F64, generator=RNG)
MODEL = MultilevelRegression(Y, X, GROUP)


def log_prior_of_scales(log_scales: Tensor) -> Tensor:
    prior = HalfCauchy(torch.tensor(2.5, dtype=F64))
    return (prior.log_prob(log_scales.exp()) + log_scales).sum(-1)


def test_the_joint_density_is_that_of_the_model() -> None:
    position = torch.randn(20, MODEL.dim, dtype=F64, generator=RNG)
    assert MODEL.layout is not None
    z = MODEL.layout.unflatten(position)
    scales = torch.stack([z["log_sigma_a"], z["log_sigma_b"], z["log_epsilon"]], -1)
    intercepts = z["mu_a"][:, None] + z["log_sigma_a"].exp()[:, None] * z["n"]
    slopes = z["mu_b"][:, None] + z["log_sigma_b"].exp()[:, None] * z["m"]
    standard = Normal(torch.zeros((), dtype=F64), 1.0)
    expected = log_prior_of_scales(scales)
    expected += sum(standard.log_prob(z[name]) for name in ("mu_a", "mu_b"))
    expected += sum(standard.log_prob(z[name]).sum(-1) for name in ("m", "n"))
    likelihood = Normal(intercepts[:, GROUP] + slopes @ X.T, z["log_epsilon"].exp()[:, None])
    torch.testing.assert_close(MODEL.log_prob(position), expected + likelihood.log_prob(Y).sum(-1))


def test_the_marginal_density_has_the_covariance_of_the_data() -> None:
    log_scales = torch.randn(20, 3, dtype=F64, generator=RNG)
    a, b, epsilon = (2 * log_scales).exp()[..., None, None].unbind(1)
    member = torch.nn.functional.one_hot(GROUP).to(X)
    total = X.sum(-1, keepdim=True)  # what μ_b multiplies
    covariance = 1 + a * member @ member.T + total @ total.T + b * X @ X.T + epsilon * torch.eye(7)
    marginal = MultivariateNormal(torch.zeros(7, dtype=F64), covariance)
    expected = marginal.log_prob(Y) + log_prior_of_scales(log_scales)
    torch.testing.assert_close(MODEL.log_marginal(log_scales), expected)


def test_a_spread_of_zero_leaves_one_intercept_and_one_slope() -> None:
    """σ_a, σ_b → 0"""
    small = torch.tensor([-40.0, -40.0, 0.0], dtype=F64)
    total = X.sum(-1, keepdim=True)
    marginal = MultivariateNormal(torch.zeros(7, dtype=F64), 1 + total @ total.T + torch.eye(7))
    expected = marginal.log_prob(Y) + log_prior_of_scales(small)
    torch.testing.assert_close(MODEL.log_marginal(small), expected)


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match=r"got \[7\], \[7\] and \[7\]"):
        MultilevelRegression(Y, Y, GROUP)
    with pytest.raises(ValueError, match=r"got \[6\], \[7, 2\] and \[7\]"):
        MultilevelRegression(Y[:6], X, GROUP)
    with pytest.raises(ValueError, match="whole numbers from 0"):
        MultilevelRegression(Y, X, GROUP - 1)
    with pytest.raises(ValueError, match="must be finite"):
        MultilevelRegression(Y.where(Y > 0, torch.nan), X, GROUP)
