"""The one place that differentiates log γ."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Exponential, Normal

from hmcvi import Density
from hmcvi.density import NormalDensity, PulledBack
from hmcvi.flows import StickBreaking
from hmcvi.internal.newton import expansion
from tests.support.problems import F64, Mixture

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
        value, grad = density.finite_value_and_grad(z)
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


def test_bridges_and_pulled_back_densities_know_their_dimension() -> None:
    """So that chains can find initial positions on them."""
    simplex = Density(lambda x: x.log().sum(-1), dim=4)
    assert PulledBack(simplex, StickBreaking()).dim == 3
    normal = NormalDensity(torch.zeros(7, 4), torch.ones(4))
    assert simplex.with_base(normal).bridge(0.5).dim == 4
    assert normal.transport is not None
    pulled_back = PulledBack(simplex, normal.transport)
    assert pulled_back.dim == 4 and pulled_back.bridge(0.5).dim == 4
    assert PulledBack(Density(quartic, torch.ones(1)), StickBreaking()).dim is None


def test_a_bridge_needs_a_base() -> None:
    with pytest.raises(ValueError, match="base"):
        Density(PROBLEM.log_prob).bridge(0.5)


def test_named_variables_are_views_of_the_vector() -> None:
    """log γ of a dict and of the flat vector are one function, gradients included, with what was given."""
    scale = torch.tensor([1.0, 2.0, 3.0], dtype=F64)[:, None]
    named = Density(
        lambda v, s: -(v["mu"] * (s * v["theta"]).sum(-1)), scale, shapes={"theta": (2,), "mu": ()}
    )
    flat = Density(lambda z, s: -(z[..., 2] * (s * z[..., :2]).sum(-1)), scale)
    z = torch.randn(3, 3, dtype=F64)
    for one, other in zip(named.value_and_grad(z), flat.value_and_grad(z), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("block", [slice(1, 3), torch.tensor([2, 0])])
def test_the_conditional_is_the_joint_along_its_block(block: slice | Tensor) -> None:
    density, z = Density(quartic, torch.rand(4, 1, dtype=F64)), torch.randn(4, 3, dtype=F64)
    other = torch.randn(4, 2, dtype=F64)
    moved = z.clone()
    moved[..., block] = other
    value, grad = density.conditional(z, block).value_and_grad(other)
    joint, joint_grad = density.value_and_grad(moved)
    torch.testing.assert_close(value, joint)
    torch.testing.assert_close(grad, joint_grad[..., block])


def test_a_density_that_chains_can_run_on_passes_the_check() -> None:
    z = torch.randn(4, 2, dtype=F64)
    with torch.no_grad():
        Density(quartic, torch.ones(1, dtype=F64)).check(z)
        Density(lambda z: torch.zeros(z.shape[:-1], dtype=F64)).check(z, differentiable=False)
    assert not z.requires_grad


def test_second_derivatives() -> None:
    """Against torch's own, also where they are constant or zero."""
    z = torch.randn(3, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    value, grad, hessian = expansion(PROBLEM.density.value_and_grad, z)
    torch.testing.assert_close((value, grad), PROBLEM.density.value_and_grad(z))
    for point, found in zip(z, hessian, strict=True):
        torch.testing.assert_close(found, torch.autograd.functional.hessian(PROBLEM.log_prob, point))
    assert torch.equal(
        expansion(Density(lambda z: z.sum(-1)).value_and_grad, z)[2], torch.zeros(3, 2, 2, dtype=F64)
    )


def test_a_density_with_another_base() -> None:
    other = Density(lambda z: -z.square().sum(-1))
    moved, z = PROBLEM.density.with_base(other), torch.randn(4, 2, dtype=F64)
    assert moved.base is other and PROBLEM.density.base is not other
    beta = torch.tensor([0.0, 0.3, 0.7, 1.0], dtype=F64)
    expected = (1 - beta) * other.log_prob(z) + beta * PROBLEM.log_prob(z)
    torch.testing.assert_close(moved.bridge(beta).log_prob(z), expected)


def funnel(z: Tensor) -> Tensor:
    """Normal distributions that validate their arguments: NaN is refused, and so is a scale of 0."""
    scale = z[..., 0].exp()
    return Normal(0.0, 1.0).log_prob(z[..., 0]) + Normal(0.0, scale).log_prob(z[..., 1])


@pytest.fixture
def validating(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does by itself, until it compiles something."""
    monkeypatch.setattr(Distribution, "_validate_args", True)


@pytest.mark.usefixtures("validating")
@pytest.mark.parametrize("where", [torch.nan, -1e4])
@pytest.mark.parametrize("lost", [[1], [0, 1, 2]])
def test_distributions_that_validate_do_not_stop_lost_chains(lost: list[int], where: float) -> None:
    density, position = Density(funnel), torch.randn(3, 2, requires_grad=True)
    with torch.no_grad():
        position[lost, 0] = where
    kept = [chain for chain in range(3) if chain not in lost]
    value, grad = density.finite_value_and_grad(position)
    assert (value[lost] == -torch.inf).all() and (grad[lost] == 0).all()
    torch.testing.assert_close((value[kept], grad[kept]), density.value_and_grad(position[kept]))
    assert (density.finite_log_prob(position)[lost] == -torch.inf).all()
    with pytest.raises(ValueError, match="Expected"):  # nobody has switched validation off
        funnel(position)


@pytest.mark.usefixtures("validating")
def test_other_errors_of_a_log_prob_are_the_users() -> None:
    def log_prob(z: Tensor) -> Tensor:
        return Exponential(1.0).log_prob(z).sum(-1)  # refuses what is outside its support

    with pytest.raises(ValueError, match="within the support"):
        Density(log_prob).value_and_grad(torch.tensor([[-1.0], [torch.nan]]))
