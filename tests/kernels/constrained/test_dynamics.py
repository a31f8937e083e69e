"""The integrator on manifolds: it runs back, keeps volume, and stays where it belongs."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hmcvi.kernels import ConstrainedHMC
from hmcvi.models import Generator
from tests.support.manifolds import GENERATORS, ellipse, pair_series, pairs, regression, series
from tests.support.problems import F64

over_generators = pytest.mark.parametrize("name", GENERATORS)
over_geodesics = pytest.mark.parametrize("num_geodesic", [1, 3])
CHAINS = 20


def start(generator: Generator, count: int = CHAINS) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, what each of them generates, and momenta that are not yet tangent."""
    rng = torch.Generator().manual_seed(2)
    inputs = generator.sample(count, generator=rng)
    return inputs, generator.observed(inputs), torch.randn(count, generator.dim, dtype=F64, generator=rng)


def steps(size: float, count: int) -> Tensor:
    return torch.full((count, 1), size, dtype=F64)


@over_generators
@over_geodesics
def test_runs_back_the_same_way(name: str, num_geodesic: int) -> None:
    inputs, observed, momentum = start(GENERATORS[name])
    kernel = ConstrainedHMC(GENERATORS[name], observed, 0.1, 5, num_geodesic, tolerance=1e-12)
    begin = kernel.point(inputs, momentum)
    end = kernel.simulate(begin, steps(0.1, CHAINS))
    back = kernel.simulate(kernel.point(end.position, -end.momentum), steps(0.1, CHAINS))
    assert end.alive.all() and back.alive.all()
    assert (end.position - inputs).norm(dim=-1).min() > 0.05
    torch.testing.assert_close(back.position, inputs, rtol=0, atol=1e-9)
    torch.testing.assert_close(-back.momentum, begin.momentum, rtol=0, atol=1e-8)


@over_generators
@over_geodesics
def test_stays_on_the_manifold_with_tangent_momenta(name: str, num_geodesic: int) -> None:
    generator = GENERATORS[name]
    inputs, observed, momentum = start(generator)
    kernel = ConstrainedHMC(generator, observed, 0.2, 10, num_geodesic)
    end = kernel.simulate(kernel.point(inputs, momentum), steps(0.2, CHAINS))
    assert end.alive.sum() > CHAINS / 2
    on_manifold = (generator.residual(end.position, observed).abs() < kernel.tolerance).all(-1)
    assert on_manifold[end.alive].all()
    jacobian = torch.func.vmap(torch.func.jacrev(generator.observed))(end.position)
    across = (jacobian @ end.momentum[..., None])[..., 0]
    torch.testing.assert_close(across[end.alive], torch.zeros_like(across[end.alive]), rtol=0, atol=1e-6)


@over_generators
def test_energy_error_is_of_second_order(name: str) -> None:
    """Halving the steps of a trajectory of time 0.5 divides the error by four."""
    inputs, observed, momentum = start(GENERATORS[name])
    errors = []
    for num_steps in (10, 20, 40):
        kernel = ConstrainedHMC(GENERATORS[name], observed, 0.5 / num_steps, num_steps, tolerance=1e-12)
        begin = kernel.point(inputs, momentum)
        end = kernel.simulate(begin, steps(0.5 / num_steps, CHAINS))
        assert end.alive.all()
        change = 0.5 * (end.momentum.square() - begin.momentum.square()).sum(-1)
        change = change - end.here.log_prob + begin.here.log_prob
        errors.append(change.square().mean().sqrt())
    orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert all(1.8 < order < 2.2 for order in orders), orders


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (series("autoregressive"), series("dense")),
        (regression("elementwise"), regression("dense")),
        (regression("autoregressive"), regression("dense")),
        (pairs(), pairs("dense")),
    ],
    ids=["autoregressive", "elementwise", "elementwise as autoregressive", "blocks"],
)
def test_every_structure_takes_the_same_way(one: Generator, other: Generator) -> None:
    inputs, observed, momentum = start(one)
    ends = []
    for generator in (one, other):
        kernel = ConstrainedHMC(generator, observed, 0.2, 5, num_geodesic=2, tolerance=1e-11)
        ends.append(kernel.simulate(kernel.point(inputs, momentum), steps(0.2, CHAINS)))
    assert torch.equal(ends[0].alive, ends[1].alive) and ends[0].alive.sum() > CHAINS / 2
    for part, twin in ((ends[0].position, ends[1].position), (ends[0].momentum, ends[1].momentum)):
        torch.testing.assert_close(part[ends[0].alive], twin[ends[0].alive], rtol=0, atol=1e-8)


def test_the_observed_past_leads_the_same_way() -> None:
    """Its rows span the same space, so that it projects to the same points."""
    test_every_structure_takes_the_same_way(series("conditional"), series("dense"))
    test_every_structure_takes_the_same_way(pair_series(), pair_series("dense"))


@over_generators
def test_is_symplectic(name: str) -> None:
    """In the chart z of the manifold, u = (z, n(z)), with canonical momenta π = (∂u/∂z)ᵀ p: AᵀΩA = Ω."""
    generator = GENERATORS[name]
    inputs, observed, _ = start(generator, 1)
    dim = generator.dim - generator.num_observed
    kernel = ConstrainedHMC(generator, observed, 0.3, 2, num_geodesic=2, tolerance=1e-13)

    def lifted(z: Tensor) -> tuple[Tensor, Tensor]:
        """u [k, M] and ∂u/∂z [k, M, dim], by Newton's method in n"""
        u = torch.cat([z, inputs[:, dim:].expand(len(z), -1)], -1)
        for _ in range(12):
            jacobian = torch.func.vmap(torch.func.jacrev(generator.observed))(u)
            columns, block = jacobian.split([dim, generator.num_observed], -1)
            step = torch.linalg.solve(block, generator.observed(u) - observed)
            u = torch.cat([u[:, :dim], u[:, dim:] - step], -1)
        slope = -torch.linalg.solve(block, columns)
        return u, torch.cat([torch.eye(dim, dtype=F64).expand(len(z), dim, dim), slope], 1)

    def flow(chart: Tensor) -> Tensor:
        """(z, π) -> (z', π')  [k, 2 dim]"""
        u, tangent = lifted(chart[:, :dim])
        gram = tangent.mT @ tangent
        momentum = (tangent @ torch.linalg.solve(gram, chart[:, dim:, None]))[..., 0]
        many = ConstrainedHMC(generator, observed.expand(len(u), -1), 0.3, 2, num_geodesic=2, tolerance=1e-13)
        end = many.simulate(many.point(u, momentum), steps(0.3, len(u)))
        assert end.alive.all()
        _, tangent = lifted(end.position[:, :dim])
        return torch.cat([end.position[:, :dim], (tangent.mT @ end.momentum[..., None])[..., 0]], -1)

    assert kernel.init(inputs).log_prob.isfinite().all()
    shift, momentum = 1e-4, torch.linspace(0.7, -0.4, dim, dtype=F64)
    centre, eye = torch.cat([inputs[0, :dim], momentum]), torch.eye(2 * dim, dtype=F64)
    corners = shift * eye
    derivative = (flow(centre + corners) - flow(centre - corners)).T / (2 * shift)
    omega = torch.kron(torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=F64), torch.eye(dim, dtype=F64))
    assert (derivative - eye).abs().max() > 0.1
    torch.testing.assert_close(derivative.T @ omega @ derivative, omega, rtol=0, atol=1e-6)


def test_keeps_the_volume_of_a_curve() -> None:
    """(arc length, momentum along the tangent) of an ellipse: a map of determinant one."""
    curve = ellipse()

    def flow(angle: Tensor, speed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        direction = torch.stack([-angle.sin(), angle.cos() / 2], -1)
        kernel = ConstrainedHMC(curve.generator, torch.zeros(1, dtype=F64), 0.2, 4, tolerance=1e-13)
        momentum = speed[:, None] * direction / direction.norm(dim=-1, keepdim=True)
        end = kernel.simulate(kernel.point(curve.position(angle), momentum), steps(0.2, len(angle)))
        assert end.alive.all()
        there = end.position + curve.centre
        new = torch.atan2(2 * there[:, 1], there[:, 0])
        tangent = torch.stack([-new.sin(), new.cos() / 2], -1)
        size = tangent.norm(dim=-1)
        return new, (end.momentum * tangent).sum(-1) / size, size / direction.norm(dim=-1)

    shift = 1e-5
    angle = torch.tensor([0.3, -1.2, 2.0], dtype=F64)
    speed = torch.tensor([0.5, -0.4, 0.6], dtype=F64)
    by_angle = [a - b for a, b in zip(flow(angle + shift, speed), flow(angle - shift, speed), strict=True)]
    by_speed = [a - b for a, b in zip(flow(angle, speed + shift), flow(angle, speed - shift), strict=True)]
    determinant = (by_angle[0] * by_speed[1] - by_angle[1] * by_speed[0]) / (2 * shift) ** 2
    torch.testing.assert_close(
        determinant * flow(angle, speed)[2], torch.ones(3, dtype=F64), rtol=0, atol=1e-6
    )


def test_more_geodesic_steps_allow_longer_steps() -> None:
    """Projections that fail for one long step succeed for ten short ones."""
    curve, failed = ellipse(), []
    torch.manual_seed(0)
    inputs, momentum = curve.draw(200), torch.randn(200, 2, dtype=F64)
    for num_geodesic in (1, 10):
        kernel = ConstrainedHMC(curve.generator, torch.zeros(1, dtype=F64), 1.0, 1, num_geodesic)
        end = kernel.simulate(kernel.point(inputs, momentum), steps(1.0, 200))
        failed.append(int((~end.alive).sum()))
    assert failed[0] > 50 > 10 > failed[1], failed
