"""The integrator of discontinuous Hamiltonian Monte Carlo: reversible, volume-preserving, of second order."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hmcvi import Density, Phase
from hmcvi.dynamics.energies import System
from hmcvi.dynamics.integrators import leapfrog
from hmcvi.internal.random import laplace_variates, permutation
from hmcvi.kernels import CholeskyMetric, DiagonalMetric, IdentityMetric, Metric
from hmcvi.kernels.mcmc.crossing import DiscontinuousSystem
from tests.support.jumps import LARGE, MIXED, PURE, THREE, CountsAndClasses, Staircase
from tests.support.problems import F64, Mixture
from tests.support.statistics import assert_mean, assert_uniform

Problem = Staircase | CountsAndClasses


def random_start(problem: Problem, count: int, metric: Metric) -> tuple[DiscontinuousSystem, Phase, Tensor]:
    """A system, exact draws with momenta of its distribution, and an order for each chain."""
    system = DiscontinuousSystem(problem.density, metric, problem.discontinuous)
    position = problem.draw(count)
    noise = laplace_variates(position).where(system.discontinuous, torch.randn_like(position))
    start = system.evaluate(Phase(position))._replace(momentum=metric.color(noise))
    return system, start, system.indices[permutation(position[:, system.discontinuous])]


@pytest.mark.parametrize("problem", [PURE, MIXED, THREE, LARGE], ids=["pure", "mixed", "3-d", "20-d"])
def test_the_trajectory_runs_back(problem: Problem) -> None:
    """With momenta turned round and the order read backwards it ends where it began."""
    torch.manual_seed(0)
    dim = len(problem.discontinuous)
    metric = DiagonalMetric(torch.linspace(-0.4, 0.3, dim, dtype=F64))
    system, start, order = random_start(problem, 500, metric)
    step_size = 0.1 + 0.1 * torch.rand(500, 1, dtype=F64)
    end, crossings = system.trajectory(start, step_size, 5, order)
    assert 0 < crossings.sum() < 500 * 5 * order.shape[-1]
    turned = end._replace(momentum=-end.momentum)
    back, _ = system.trajectory(turned, step_size, 5, order.flip(-1))
    torch.testing.assert_close(back.position, start.position, rtol=0, atol=1e-10)
    torch.testing.assert_close(back.momentum, -start.momentum, rtol=0, atol=1e-10)
    if order.shape[-1] > 1:
        astray, _ = system.trajectory(turned, step_size, 5, order)
        assert (astray.position - start.position).abs().max() > 0.1, "the order was not tested"


@torch.no_grad()
def test_energy_error_vanishes_with_the_square_of_the_step() -> None:
    """On a smooth target, over a fixed time."""
    torch.manual_seed(0)
    problem = Mixture()
    system = DiscontinuousSystem(problem.density, IdentityMetric(), torch.tensor([False, True]))
    position = problem.draw(200)
    start = system.evaluate(Phase(position, torch.randn_like(position)))
    order, errors = torch.ones(200, 1, dtype=torch.int64), []
    for num_steps in (64, 128):
        size = torch.full((200, 1), 1.0 / num_steps, dtype=F64)
        end, _ = system.trajectory(start, size, num_steps, order)
        errors.append((system.energy(end) - system.energy(start)).abs().median())
    assert 1.5 < math.log2(errors[0] / errors[1]) < 2.5


@pytest.mark.parametrize("mask", [[False, True], [True, True]], ids=["mixed", "pure"])
def test_volume_is_preserved(mask: list[bool]) -> None:
    """log |det ∂(z', v')/∂(z, v)| = 0 by autograd, on a smooth target, for crossings and bounces."""
    torch.manual_seed(0)
    problem, count = Mixture(), 40
    metric = DiagonalMetric(torch.tensor([0.5, -0.5], dtype=F64))
    system = DiscontinuousSystem(problem.density, metric, torch.tensor(mask))
    order = system.indices[permutation(torch.zeros(count, sum(mask)))]
    point = torch.cat([problem.draw(count), torch.randn(count, 2, dtype=F64)], -1).requires_grad_()
    start = system.evaluate(Phase(point[:, :2]))._replace(momentum=point[:, 2:])
    end, crossings = system.trajectory(start, torch.full((count, 1), 0.5, dtype=F64), 3, order)
    assert 0 < crossings.sum() < 3 * order.numel()
    image = torch.cat([end.position, end.momentum], -1)
    rows = [torch.autograd.grad(image[:, i].sum(), point, retain_graph=True)[0] for i in range(4)]
    torch.testing.assert_close(torch.linalg.slogdet(torch.stack(rows, 1))[1], torch.zeros(count, dtype=F64))


def test_the_continuous_block_is_leapfrog() -> None:
    """Beside an independent discontinuous coordinate the others follow ordinary Hamiltonian dynamics."""
    torch.manual_seed(0)
    problem = Mixture()
    joint = Density(lambda z: problem.log_prob(z[..., :2]) - z[..., 2].abs().ceil())
    metric = CholeskyMetric(torch.tensor([[1.2, 0, 0], [-0.4, 1.1, 0], [0, 0, 0.7]], dtype=F64))
    system = DiscontinuousSystem(joint, metric, torch.tensor([False, False, True]))
    position, momentum = torch.randn(50, 3, dtype=F64), torch.randn(50, 3, dtype=F64)
    start = system.evaluate(Phase(position))._replace(momentum=momentum)
    size, order = torch.full((50, 1), 0.4, dtype=F64), torch.full((50, 1), 2)
    end, _ = system.trajectory(start, size, 4, order)
    block = System(problem.density, CholeskyMetric(metric.root[:2, :2]))
    expected = leapfrog(block, Phase(position[:, :2], momentum[:, :2]), size, 4)
    torch.testing.assert_close(end.position[:, :2], expected.position)
    torch.testing.assert_close(end.momentum[:, :2], expected.momentum)


def test_chains_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    system, start, order = random_start(LARGE, 6, IdentityMetric())
    step_size = 0.3 + 0.1 * torch.rand(6, 1, dtype=F64)
    together, _ = system.trajectory(start, step_size, 3, order)
    for chain in range(6):
        alone = Phase(*(part[chain] for part in start))
        end, _ = system.trajectory(alone, step_size[chain], 3, order[chain])
        torch.testing.assert_close(end.position, together.position[chain])


def test_the_distribution_of_momenta_and_the_orders() -> None:
    torch.manual_seed(0)
    drawn = laplace_variates(torch.zeros(40_000, 2, dtype=F64))
    assert_uniform(torch.distributions.Laplace(0.0, 1.0).cdf(drawn))
    code = permutation(torch.zeros(60_000, 3, dtype=F64)) @ torch.tensor([9, 3, 1])
    orders = torch.tensor([5, 7, 11, 15, 19, 21])  # 012, 021, 102, 120, 201, 210 in base three
    assert_mean((code[:, None] == orders).double(), 1 / 6)
