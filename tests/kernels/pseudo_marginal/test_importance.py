"""Estimates of marginal densities: unbiased, exact where the proposal is, and honest about failure."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from hmcvi.kernels import GaussianProposal, ImportanceEstimator, LaplaceProposal
from hmcvi.kernels.pseudo_marginal.laplace import fit_laplace
from tests.support.problems import F64
from tests.support.statistics import assert_evidence

DATA = torch.tensor([0.3, 1.5, -0.2], dtype=F64)


def normal(value: Tensor, loc: Tensor | float, scale: float) -> Tensor:
    return -0.5 * ((value - loc) / scale).square() - math.log(scale * (2 * math.pi) ** 0.5)


def linear(x: Tensor, z: Tensor) -> Tensor:
    """x ~ N(0, 1), z_i | x ~ N(x, 1), y_i | z_i ~ N(z_i, 0.5²)"""
    return (normal(x, 0.0, 1.0) + 0 * x).sum(-1) + (normal(z, x, 1.0) + normal(DATA, z, 0.5)).sum(-1)


def exact(x: Tensor) -> Tensor:
    """log p(x, y)"""
    return normal(x[..., 0], 0.0, 1.0) + normal(DATA, x, math.sqrt(1.25)).sum(-1)


def prior(x: Tensor) -> tuple[Tensor, Tensor]:
    loc = x.expand(*x.shape[:-1], 3)
    return loc, torch.ones_like(loc)


def dense(x: Tensor) -> tuple[Tensor, Tensor]:
    root = 0.8 * torch.eye(3, dtype=x.dtype) + 0.3 * torch.ones(3, 3, dtype=x.dtype).tril(-1)
    return 0.5 * (x + DATA), root.expand(*x.shape[:-1], 3, 3)


PROPOSALS = {
    "prior": GaussianProposal(prior, 3),
    "another distribution": GaussianProposal(dense, 3),
}


@pytest.mark.parametrize("name", PROPOSALS)
@pytest.mark.parametrize("num_importance", [1, 4])
def test_estimates_have_the_marginal_density_as_their_mean(name: str, num_importance: int) -> None:
    torch.manual_seed(0)
    estimator = ImportanceEstimator(linear, PROPOSALS[name], num_importance)
    x = torch.tensor([[0.4], [0.1]], dtype=F64)
    u = torch.randn(40_000, 2, estimator.auxiliary_dim, dtype=F64)
    wide = x.expand(40_000, 2, 1)
    assert_evidence(estimator.log_estimate(wide, u, estimator.prepare(wide)), exact(x))


def skewed(x: Tensor, z: Tensor) -> Tensor:
    return (x * z - z.exp() - 0.1 * z.square()).sum(-1)


def test_the_error_of_laplace_is_paid_for_by_the_weights() -> None:
    torch.manual_seed(0)
    grid = torch.linspace(-30, 6, 20_001, dtype=F64)
    x = torch.tensor([[0.7], [2.5]], dtype=F64)
    log_evidence = skewed(x[:, None], grid[:, None]).logsumexp(-1) + (grid[1] - grid[0]).log()
    estimator = ImportanceEstimator(skewed, LaplaceProposal(skewed, 1), num_importance=2)
    wide = x.expand(10_000, 2, 1)
    u = torch.randn(10_000, 2, 2, dtype=F64)
    assert_evidence(estimator.log_estimate(wide, u, estimator.prepare(wide)), log_evidence)


def test_the_exact_proposal_has_no_noise() -> None:
    estimator = ImportanceEstimator(linear, LaplaceProposal(linear, 3), 2)
    x = torch.randn(50, 1, dtype=F64)
    value = estimator.log_estimate(x, torch.randn(50, 6, dtype=F64), estimator.prepare(x))
    torch.testing.assert_close(value, exact(x))


def bent(x: Tensor, z: Tensor) -> Tensor:
    """Log-concave in z, with a mode that no formula has."""
    return (x[..., :1] * z - z.cosh() - 0.3 * (z.roll(1, -1) - x[..., 1:]).exp()).sum(-1)


def test_the_mode_is_the_mode_and_the_root_that_of_the_inverse_hessian() -> None:
    torch.manual_seed(0)
    x = 2 * torch.randn(4, 5, 2, dtype=F64)
    mode, root = fit_laplace(bent, x, 3)
    flat, modes = x.view(-1, 2), mode.view(-1, 3)
    slope = torch.func.vmap(torch.func.grad(bent, 1))(flat, modes)
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-9, rtol=0)
    curvature = -torch.func.vmap(torch.func.jacrev(torch.func.grad(bent, 1), 1))(flat, modes)
    identity = torch.eye(3, dtype=F64).expand_as(curvature)
    torch.testing.assert_close(root.view(-1, 3, 3) @ root.view(-1, 3, 3).mT @ curvature, identity)


def test_the_mode_moves_with_the_target_variables() -> None:
    x = torch.tensor([[0.4, -0.3], [1.0, 0.8]], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: fit_laplace(bent, x, 3), x)


def test_a_fit_from_far_away_is_damped() -> None:
    """Newton's method alone would leap out of the reach of numbers."""
    x = torch.tensor([[0.0, -60.0]], dtype=F64)
    mode, root = fit_laplace(bent, x, 3)
    assert mode.isfinite().all() and root.isfinite().all()


def test_a_fit_that_fails_gives_no_estimate() -> None:
    def endless(x: Tensor, z: Tensor) -> Tensor:  # has no mode for x > 0
        return (z * x.clamp(min=0) - 0.5 * z.square() * (x <= 0)).sum(-1)

    estimator = ImportanceEstimator(endless, LaplaceProposal(endless, 1, max_iterations=5))
    x, u = torch.tensor([[-1.0], [1.0]], dtype=F64), torch.zeros(2, 1, dtype=F64)
    value = estimator.log_estimate(x, u, estimator.prepare(x))
    assert value[0].isfinite() and value[1] == -torch.inf


def test_densities_of_proposals_are_those_of_torch() -> None:
    normals = torch.randn(5, 4, 3, dtype=F64)
    proposal = GaussianProposal(lambda x: (x, (0.3 * x).exp()), 3)
    x = torch.randn(5, 3, dtype=F64)
    z, log_prob = proposal.draw(normals, proposal.prepare(x))
    expected = Normal(x[:, None], (0.3 * x).exp()[:, None])
    torch.testing.assert_close(log_prob, expected.log_prob(z).sum(-1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImportanceEstimator(linear, PROPOSALS["prior"], 0), "num_importance must be at least 1"),
        (lambda: LaplaceProposal(linear, 3, max_iterations=0), "max_iterations must be at least 1"),
    ],
)
def test_misuse_says_what_to_do(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
