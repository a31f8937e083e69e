"""Simplex transforms: bijections whose Jacobians are those of autograd, at every size and at the boundary."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet, TransformedDistribution, biject_to, constraints
from torch.distributions.transforms import ComposeTransform, StickBreakingTransform

from hmcvi.flows import AdditiveLogRatio, AugmentedSoftmaxDistribution, StickBreaking
from hmcvi.flows.simplex import SimplexTransform
from tests.support.problems import F64
from tests.support.statistics import assert_mean

F32 = torch.float32
TRANSFORMS = [StickBreaking(), AdditiveLogRatio()]
over_transforms = pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: type(t).__name__)
over_dtypes = pytest.mark.parametrize("dtype", [F32, F64], ids=str)


def log_det(function: object, y: Tensor) -> Tensor:
    return torch.linalg.slogdet(torch.func.jacrev(function)(y)).logabsdet


@over_transforms
@pytest.mark.parametrize("size", [2, 3, 10])
def test_jacobian_is_that_of_autograd(transform: SimplexTransform, size: int) -> None:
    torch.manual_seed(0)
    for y in 2 * torch.randn(5, size - 1, dtype=F64):
        expected = log_det(lambda y: transform(y)[:-1], y)
        torch.testing.assert_close(transform.log_abs_det_jacobian(y, transform(y)), expected)


@over_transforms
@over_dtypes
@pytest.mark.parametrize("size", [2, 10, 1000])
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_round_trip(
    transform: SimplexTransform, dtype: torch.dtype, size: int, batch: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    y = torch.randn(*batch, size - 1, dtype=dtype)
    x = transform(y)
    assert x.dtype == dtype and x.shape == transform.forward_shape(y.shape) == (*batch, size)
    assert transform.inverse_shape(x.shape) == y.shape
    assert transform.codomain.check(x).all() and (x > 0).all()
    torch.testing.assert_close(transform.inv(x), y, rtol=0, atol=(3e-4 if dtype == F32 else 1e-11))
    assert transform.log_abs_det_jacobian(y, x).shape == batch


@over_transforms
@over_dtypes
def test_a_thousand_categories_have_the_jacobian_of_double_precision(
    transform: SimplexTransform, dtype: torch.dtype
) -> None:
    torch.manual_seed(2)
    y = torch.randn(999, dtype=F64)
    expected = log_det(lambda y: transform(y)[:-1], y)
    actual = transform.log_abs_det_jacobian(y.to(dtype), transform(y.to(dtype)))
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5 if dtype == F32 else 1e-11, atol=0)


@over_transforms
@over_dtypes
@pytest.mark.parametrize("far", [-1e4, -200.0, 200.0, 1e4])
def test_nothing_is_lost_at_the_boundary(transform: SimplexTransform, dtype: torch.dtype, far: float) -> None:
    """x stays inside, log|det| and its gradient are finite, and a density with α < 1 too."""
    y = torch.tensor([far, 0.3, -far, 1.0], dtype=dtype, requires_grad=True)
    x = transform(y)
    assert transform.codomain.check(x).all() and (x > 0).all()
    price = transform.log_abs_det_jacobian(y, x)
    log_prob = Dirichlet(torch.full((5,), 0.1, dtype=dtype)).log_prob(x) + price
    (grad,) = torch.autograd.grad(log_prob, y)
    assert price.isfinite() and log_prob.isfinite() and grad.isfinite().all()
    assert transform.inv(x).isfinite().all()


def test_faces_of_the_simplex_have_an_image() -> None:
    for transform in TRANSFORMS:
        assert transform.inv(torch.tensor([1.0, 0.0, 0.0])).isfinite().all()
        assert transform.inv(torch.tensor([0.0, 0.0, 1.0])).isfinite().all()


def test_stick_breaking_is_that_of_torch() -> None:
    torch.manual_seed(3)
    y, reference = torch.randn(7, 5, dtype=F64), StickBreakingTransform()
    x = reference(y)
    torch.testing.assert_close(StickBreaking()(y), x)
    torch.testing.assert_close(StickBreaking().inv(x), reference.inv(x))
    torch.testing.assert_close(
        StickBreaking().log_abs_det_jacobian(y, x), reference.log_abs_det_jacobian(y, x)
    )


def test_inverse_of_the_source_with_its_factor_restored() -> None:
    """x_i = (1 − Σ_{j<i} x_j) z_i, z_i = σ(y_i − log(K − i)), one by one."""
    y = torch.tensor([0.5, -1.0, 2.0], dtype=F64)
    left, x = 1.0, []
    for index, entry in enumerate(y.tolist(), start=1):
        x.append(left / (1 + math.exp(math.log(4 - index) - entry)))
        left -= x[-1]
    torch.testing.assert_close(StickBreaking()(y), torch.tensor([*x, left], dtype=F64))


@over_transforms
def test_behaves_as_torch_expects(transform: SimplexTransform) -> None:
    other = next(t for t in TRANSFORMS if t != transform)
    assert transform == type(transform)() and transform != other
    assert transform.inv.inv is transform
    assert transform.domain.event_dim == transform.codomain.event_dim == 1
    cached = transform.with_cache()
    assert cached == transform and cached._cache_size == 1
    y = torch.randn(3)
    assert cached.inv(cached(y)) is y
    composed = ComposeTransform([transform, transform.inv])
    torch.testing.assert_close(composed(y), y)
    torch.testing.assert_close(composed.log_abs_det_jacobian(y, y), torch.zeros(()), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="vector"):
        transform.forward_shape(torch.Size())


def test_the_registry_of_torch_is_left_alone() -> None:
    assert type(biject_to(constraints.simplex)) is StickBreakingTransform


@over_transforms
def test_a_dirichlet_distribution_pulled_back(transform: SimplexTransform) -> None:
    """Its importance weights against N(0, 2² I) have mean one."""
    torch.manual_seed(4)
    distribution = TransformedDistribution(Dirichlet(torch.tensor([3.0, 4.0, 5.0], dtype=F64)), transform.inv)
    base = torch.distributions.Normal(torch.zeros(2, dtype=F64), 2.0)
    y = base.sample((50_000,))
    assert_mean((distribution.log_prob(y) - base.log_prob(y).sum(-1)).exp(), 1.0)


def test_augmented_distribution_is_the_change_of_variables() -> None:
    torch.manual_seed(5)
    simplex = Dirichlet(torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=F64))
    distribution, size = AugmentedSoftmaxDistribution(simplex), torch.distributions.Normal(math.log(4), 1.0)

    def both(y: Tensor) -> Tensor:
        return torch.cat([y.softmax(-1)[:-1], y.logsumexp(-1, keepdim=True)])

    for y in torch.randn(5, 4, dtype=F64):
        x, log_size = y.softmax(-1), y.logsumexp(-1)
        expected = simplex.log_prob(x) + size.log_prob(log_size) + log_det(both, y)
        torch.testing.assert_close(distribution.log_prob(y), expected)


def test_augmented_draws() -> None:
    torch.manual_seed(6)
    concentration = torch.tensor([[0.5, 1.0, 2.0], [3.0, 1.0, 1.0]], dtype=F64)
    distribution = AugmentedSoftmaxDistribution(Dirichlet(concentration))
    y = distribution.sample((20_000,))
    assert y.shape == (20_000, 2, 3) and distribution.batch_shape == (2,)
    assert_mean(y.softmax(-1), concentration / concentration.sum(-1, keepdim=True))
    assert_mean(y.logsumexp(-1), math.log(3))
    assert_mean((y.logsumexp(-1) - math.log(3)).square(), 1.0)
    assert distribution.expand(torch.Size((5, 2))).log_prob(y[:5]).shape == (5, 2)
    with pytest.raises(ValueError, match="simplex"):
        AugmentedSoftmaxDistribution(torch.distributions.Normal(0.0, 1.0))
