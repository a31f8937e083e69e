"""The one place that differentiates log γ."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmcvi import Density
from tests.problems import F64, Mixture

PROBLEM = Mixture()


def quartic(z: Tensor, a: Tensor) -> Tensor:
    return -(a * z**4).sum(-1) / 4


def test_gradient_is_the_analytic_one() -> None:
    z, a = torch.randn(3, 5, 2, dtype=F64), torch.rand(5, 1, dtype=F64)
    value, grad = Density(quartic, a).value_and_grad(z)
    torch.testing.assert_close(value, quartic(z, a))
    torch.testing.assert_close(grad, -a * z**3)


def test_differentiable_again_while_gradients_are_on() -> None:
    z = torch.randn(4, 2, dtype=F64, requires_grad=True)
    a = torch.rand(4, 1, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, a: Density(quartic, a).value_and_grad(z), (z, a))
    value, grad = Density(quartic, a).value_and_grad(z)
    by_z, by_a = torch.autograd.grad(grad.sum() + value.sum(), (z, a))
    torch.testing.assert_close(by_z, (-3 * a * z**2 - a * z**3).detach())
    torch.testing.assert_close(by_a, (-(z**3) - z**4 / 4).sum(-1, keepdim=True).detach())


def test_nothing_is_recorded_while_gradients_are_off() -> None:
    z, a = torch.randn(4, 2, dtype=F64), torch.rand(4, 1, dtype=F64, requires_grad=True)
    with torch.no_grad():
        value, grad = Density(quartic, a).value_and_grad(z)
    assert not value.requires_grad and not grad.requires_grad and not z.requires_grad
    torch.testing.assert_close(grad, (-a * z**3).detach())


@pytest.mark.parametrize("training", [True, False])
def test_points_without_a_number_are_masked(training: bool) -> None:
    """log γ = Σ log z: −inf and NaN where z ≤ 0, a zero gradient there, the others untouched."""
    density = Density(lambda z, scale: (scale * z.log()).sum(-1), torch.ones((), dtype=F64))
    z = torch.tensor([[1.0, 2.0], [-1.0, 1.0], [0.0, 1.0], [3.0, 0.5]], dtype=F64, requires_grad=training)
    with torch.set_grad_enabled(training):
        value, grad = density.value_and_grad(z)
    assert (value[1:3] == -torch.inf).all() and (grad[1:3] == 0).all()
    torch.testing.assert_close(value[[0, 3]], z.detach()[[0, 3]].log().sum(-1), check_dtype=False)
    torch.testing.assert_close(grad[[0, 3]].detach(), 1 / z.detach()[[0, 3]])
    if training:
        (again,) = torch.autograd.grad(grad.sum(), z)
        torch.testing.assert_close(again[[0, 3]], (-1 / z.detach() ** 2)[[0, 3]])
        assert (again[1:3] == 0).all()


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_bridge_is_the_geometric_path(beta: float) -> None:
    z = PROBLEM.draw_base(5)
    value, grad = PROBLEM.density.bridge(beta).value_and_grad(z)
    (target, target_grad), (base, base_grad) = (
        density.value_and_grad(z) for density in (PROBLEM.density, PROBLEM.base)
    )
    torch.testing.assert_close(value, (1 - beta) * base + beta * target)
    torch.testing.assert_close(grad, (1 - beta) * base_grad + beta * target_grad)


def test_a_bridge_needs_a_base() -> None:
    with pytest.raises(ValueError, match="base"):
        Density(PROBLEM.log_prob).bridge(0.5)
