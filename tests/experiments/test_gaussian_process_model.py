"""The probit process: its covariance, Laplace's approximation and unbiased estimates of its evidence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.models.gaussian_process import ProbitProcess
from tests.support.problems import F64
from tests.support.statistics import assert_evidence, assert_mean

FEATURES = torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [0.0, 1.0]], dtype=F64)  # two are the same
LABELS = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=F64)


def process(num_importance: int = 3) -> ProbitProcess:
    return ProbitProcess(FEATURES, LABELS, num_importance)


def test_points_that_occur_twice_share_their_value() -> None:
    model = process()
    assert (model.num_points, model.dim, model.auxiliary_dim) == (3, 3, 9)
    latent = torch.tensor([0.4, -0.3, 1.2], dtype=F64)  # of [0, 1], [1, 1], [2, 0] in order
    phi = torch.special.ndtr(latent)
    expected = 2 * phi[0].log() + (1 - phi[1]).log() + phi[2].log()
    torch.testing.assert_close(model.log_likelihood(latent), expected)


def test_the_covariance_is_the_squared_exponential() -> None:
    model, x = process(), torch.tensor([0.5, -0.2, 0.3], dtype=F64)
    covariance = model.covariance(x.expand(4, 3))[2]
    scale, lengths = x[0].exp(), x[1:].exp()
    distance = ((FEATURES[0] - FEATURES[2]) / lengths).square().sum()
    torch.testing.assert_close(covariance[0, 2], scale * (-0.5 * distance).exp())
    torch.testing.assert_close(covariance.diagonal(), (scale + 1e-8).expand(3))


@pytest.mark.parametrize("shift", [0.0, -20.0, 20.0])
def test_slope_and_curvature_are_derivatives_far_out_too(shift: float) -> None:
    model = process()
    latent = (torch.randn(3, dtype=F64) + shift).requires_grad_()
    slope, curvature = model.slope_and_curvature(latent)
    gradient = torch.autograd.functional.jacobian(model.log_likelihood, latent)
    hessian = torch.autograd.functional.hessian(model.log_likelihood, latent)
    torch.testing.assert_close(slope, gradient)
    torch.testing.assert_close(-curvature, hessian.diagonal(), atol=1e-7, rtol=1e-5)


def test_the_fit_is_at_the_mode_with_the_curvature_there() -> None:
    torch.manual_seed(0)
    model, x = process(), torch.randn(5, 3, dtype=F64)
    fit = model.prepare(x)

    def log_joint(white: Tensor, root: Tensor) -> Tensor:
        return model.log_likelihood(root @ white) - 0.5 * white.square().sum()

    for mode, root, prior_root in zip(fit.mode, fit.root, fit.prior_root, strict=True):
        gradient = torch.autograd.functional.jacobian(lambda v, r=prior_root: log_joint(v, r), mode)
        hessian = torch.autograd.functional.hessian(lambda v, r=prior_root: log_joint(v, r), mode)
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-5, rtol=0)
        torch.testing.assert_close(root @ root.mT, -hessian, atol=1e-5, rtol=1e-5)


def evidence(model: ProbitProcess, x: Tensor) -> Tensor:
    """log p(y | x) by quadrature over the three latent values  [..., 3] -> [...]"""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(40))
    grid = torch.cartesian_prod(nodes, nodes, nodes)
    log_weight = torch.cartesian_prod(*[(weights / weights.sum()).log()] * 3).sum(-1)
    root = torch.linalg.cholesky(model.covariance(x))
    return (model.log_likelihood(grid @ root.mT) + log_weight).logsumexp(-1)


@pytest.mark.parametrize("num_importance", [1, 4])
def test_estimates_have_the_evidence_as_their_mean(num_importance: int) -> None:
    torch.manual_seed(0)
    model, x = process(num_importance), torch.tensor([[0.5, -0.2, 0.3], [1.5, 0.4, 0.1]], dtype=F64)
    u = torch.randn(20_000, 2, model.auxiliary_dim, dtype=F64)
    log_estimate = model.log_estimate(x, u, model.prepare(x))
    assert_evidence(log_estimate, model.log_prior(x) + evidence(model, x))


def test_draws_of_the_prior_have_its_density() -> None:
    """E[x] of log-gamma variables is a digamma function."""
    x = process().sample_prior(100_000, generator=torch.Generator().manual_seed(0))
    concentration = torch.tensor([1.1, 1.0, 1.0], dtype=F64)
    rate = torch.tensor([0.1, 1 / 3, 1 / 3], dtype=F64)
    assert_mean(x, torch.digamma(concentration) - rate.log())


def test_a_covariance_that_cannot_be_factored_gives_no_estimate() -> None:
    model, x = process(), torch.tensor([[0.0, 0.0, 0.0], [torch.nan, 0.0, 0.0]], dtype=F64)
    u = torch.zeros(2, model.auxiliary_dim, dtype=F64)
    value = model.log_estimate(x, u, model.prepare(x))
    assert value[0].isfinite() and value[1].isnan()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProbitProcess(FEATURES, LABELS[:2]), r"features must be \[M, K\] and labels \[M\]"),
        (lambda: ProbitProcess(FEATURES, 2 * LABELS), "labels must be 0 or 1"),
        (lambda: process(0), "num_importance must be at least 1"),
    ],
)
def test_misuse_says_what_to_do(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
