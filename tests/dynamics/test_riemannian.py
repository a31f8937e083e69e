"""Position-dependent masses: closed forms, and the integrator's reversibility, volume, order and failures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmcvi import Density
from hmcvi.dynamics.riemannian import GaussNewtonMetric, GeneralisedLeapfrog
from hmcvi.kernels import HMC, DiagonalMetric, RiemannianHMC
from tests.support.problems import F64

EPSILON = 0.7


def bent(z: Tensor) -> Tensor:
    """Two outputs of three inputs, one of them linear."""
    return torch.stack([z[..., 0].sin() * z[..., 1] + 0.3 * z[..., 2].square(), z.sum(-1)], -1)


def log_prob(z: Tensor) -> Tensor:
    return -0.5 * z.square().sum(-1) - 0.5 * ((bent(z) - 0.4) / EPSILON).square().sum(-1)


METRIC = GaussNewtonMetric(bent, EPSILON)
LEAPFROG = GeneralisedLeapfrog(Density(log_prob), METRIC, max_iterations=100, tolerance=1e-13)


def dense(position: Tensor) -> Tensor:
    jacobian = torch.autograd.functional.jacobian(bent, position)
    return torch.eye(3, dtype=F64) + jacobian.T @ jacobian / EPSILON**2


def test_closed_forms_are_those_of_the_whole_matrix() -> None:
    torch.manual_seed(0)
    position, momentum = torch.randn(2, 5, 3, dtype=F64)
    local = METRIC.at(position, differentiable=True)
    for index in range(5):
        matrix, p = dense(position[index]), momentum[index]
        torch.testing.assert_close(local.velocity(momentum)[index], torch.linalg.solve(matrix, p))
        energy = 0.5 * p @ torch.linalg.solve(matrix, p) + 0.5 * matrix.logdet()
        torch.testing.assert_close(local.energy(momentum)[index], energy)
        for i in range(3):  # the derivative by central differences
            step = 1e-5 * torch.eye(3, dtype=F64)[i]
            ends = [METRIC.at(position[index] + sign * step).energy(p) for sign in (1, -1)]
            slope = (ends[0] - ends[1]) / 2e-5
            torch.testing.assert_close(local.energy_grad(momentum)[index, i], slope, rtol=1e-5, atol=1e-7)


def test_momenta_have_the_covariance_of_the_metric() -> None:
    position = torch.tensor([0.3, -0.8, 0.5], dtype=F64)
    momenta = METRIC.at(position.expand(200_000, 3)).sample(torch.Generator().manual_seed(0))
    torch.testing.assert_close(momenta.T.cov(), dense(position), rtol=0.02, atol=0.02)


def trajectory(point: Tensor, step_size: float, count: int = 1) -> tuple[Tensor, Tensor]:
    start = LEAPFROG.at(point[..., :3])
    momentum, energy = point[..., 3:], start.energy(point[..., 3:])
    for _ in range(count):
        start, momentum, succeeded, _ = LEAPFROG.step(start, momentum, torch.tensor(step_size, dtype=F64))
        assert succeeded.all()
    return torch.cat([start.position, momentum], -1), start.energy(momentum) - energy


def test_steps_are_reversible_and_keep_volume() -> None:
    torch.manual_seed(0)
    point = 0.7 * torch.randn(4, 6, dtype=F64)
    there, _ = trajectory(point, 0.1)
    turned = torch.tensor([1.0] * 3 + [-1.0] * 3, dtype=F64)
    back, _ = trajectory(there * turned, 0.1)
    torch.testing.assert_close(back * turned, point, rtol=0, atol=1e-10)
    step = 1e-5 * torch.eye(6, dtype=F64)
    ends = [trajectory(point[:, None] + sign * step, 0.1)[0] for sign in (1, -1)]
    log_det = torch.linalg.slogdet((ends[0] - ends[1]) / 2e-5).logabsdet
    torch.testing.assert_close(log_det, torch.zeros_like(log_det), rtol=0, atol=1e-6)


def test_the_energy_error_is_of_second_order() -> None:
    torch.manual_seed(0)
    point = 0.5 * torch.randn(20, 6, dtype=F64)
    coarse, fine = (trajectory(point, size, count)[1].abs().mean() for size, count in ((0.1, 4), (0.05, 8)))
    assert 3.2 < float(coarse / fine) < 5.0


def test_a_linear_function_is_a_constant_mass() -> None:
    """G = I + diag(a²)/ε² does not depend on z, and the steps are those of HMC with that mass."""
    slope = torch.tensor([2.0, 0.5], dtype=F64)
    density = Density(lambda z: -(z + 0.3 * z.sin()).square().sum(-1))
    metric = GaussNewtonMetric(lambda z: slope * z, EPSILON)
    mass = 1 + (slope / EPSILON).square()
    start, momentum = torch.randn(2, 6, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    leapfrog = GeneralisedLeapfrog(density, metric)
    end, new, succeeded, _ = leapfrog.step(leapfrog.at(start), momentum, torch.tensor(0.2, dtype=F64))
    half = momentum + 0.1 * density.value_and_grad(start)[1]
    position = start + 0.2 * half / mass
    torch.testing.assert_close(end.position, position)
    torch.testing.assert_close(new, half + 0.1 * density.value_and_grad(position)[1])
    assert succeeded.all()
    hmc = HMC(density, 0.2, 1, DiagonalMetric(0.5 * mass.log()))
    torch.testing.assert_close(hmc.metric.velocity(half), half / mass)


def test_equations_without_solution_are_rejections_of_single_chains() -> None:
    kernel = RiemannianHMC(Density(log_prob), METRIC, torch.tensor([[0.05], [9.0]], dtype=F64), 2)
    start = kernel.init(0.3 * torch.ones(2, 3, dtype=F64))
    state, info = kernel.step(start, torch.Generator().manual_seed(0))
    assert info["solved"].tolist() == [1.0, 0.0]
    assert not info["accepted"][1] and torch.equal(state.position[1], start.position[1])


def test_misuse_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="epsilon must be positive"):
        GaussNewtonMetric(bent, 0.0)
    kernel = RiemannianHMC(Density(log_prob), GaussNewtonMetric(log_prob, 1.0), 0.1, 1)
    with pytest.raises(ValueError, match=r"must return outputs \[..., n\]"):
        kernel.init(torch.zeros(2, 3, dtype=F64))
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        kernel.replace(num_steps=0)
    with pytest.raises(ValueError, match="tolerance must be positive"):
        kernel.replace(tolerance=-1.0)
