"""Metropolis proposals: their distribution, their acceptance, and where their randomness comes from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MultivariateNormal, Normal

from hmcvi import Density, Phase
from hmcvi.internal.random import draw_from
from hmcvi.kernels import HMC, DiagonalMetric, IndependentMetropolis, RandomWalkMetropolis
from tests.contracts.members import MetricExample, metrics
from tests.support.problems import F64, Mixture
from tests.support.statistics import assert_mean

PROBLEM = Mixture()
FLAT = Density(lambda z: 0 * z.sum(-1))
LAW = MultivariateNormal(torch.tensor([0.3, -0.2], dtype=F64), 4 * torch.eye(2, dtype=F64))


@pytest.mark.parametrize("example", metrics(), ids=lambda e: type(e.metric).__name__)
def test_random_walk_has_the_covariance_of_the_metric(example: MetricExample) -> None:
    """On a flat density every z' − z ~ N(0, ε² M⁻¹) is accepted."""
    kernel = RandomWalkMetropolis(FLAT, 0.7, example.metric)
    start = torch.ones(20_000, 3, dtype=F64)
    state, info = kernel.step(kernel.init(start), torch.Generator().manual_seed(1))
    moved = state.position - start
    assert info["accepted"].all() and (info["acceptance_rate"] == 1).all()
    assert_mean(moved, 0.0)
    assert_mean(moved[..., :, None] * moved[..., None, :], 0.49 * example.matrix.inverse())


def test_a_step_per_chain_or_dimension() -> None:
    for step_size in (torch.tensor([0.1, 10.0], dtype=F64), torch.tensor([[0.1], [10.0]], dtype=F64)):
        kernel = RandomWalkMetropolis(FLAT, step_size)
        ends = kernel.step(kernel.init(torch.zeros(2, 2, dtype=F64)), torch.Generator().manual_seed(1))[0]
        unit = RandomWalkMetropolis(FLAT, 1.0)
        plain = unit.step(unit.init(torch.zeros(2, 2, dtype=F64)), torch.Generator().manual_seed(1))[0]
        torch.testing.assert_close(ends.position, step_size * plain.position)


def proposals(kernel: RandomWalkMetropolis | IndependentMetropolis, start: Tensor) -> Tensor:
    """What the kernel proposes from `start`: on a density that accepts everything, with the same seed."""
    distribution = getattr(kernel, "proposal", None)
    density = FLAT if distribution is None else Density(distribution.log_prob)
    easy = kernel.replace(density=density)
    state, info = easy.step(easy.init(start), torch.Generator().manual_seed(3))
    assert info["accepted"].all()
    return state.position


@pytest.mark.parametrize("independent", [False, True])
def test_acceptance_balances_the_flow(independent: bool) -> None:
    """γ(z) q(z'|z) a(z, z') = γ(z') q(z|z') a(z', z) = the lesser of the two flows."""
    torch.manual_seed(0)
    start = PROBLEM.draw_base(500)
    kernel = (
        IndependentMetropolis(PROBLEM.density, LAW)
        if independent
        else RandomWalkMetropolis(PROBLEM.density, 1.0, DiagonalMetric(torch.tensor([0.5, -0.5], dtype=F64)))
    )
    end = proposals(kernel, start)
    state, info = kernel.step(kernel.init(start), torch.Generator().manual_seed(3))
    there = PROBLEM.log_prob(start) + (LAW.log_prob(end) if independent else 0.0)
    back = PROBLEM.log_prob(end) + (LAW.log_prob(start) if independent else 0.0)
    torch.testing.assert_close(info["acceptance_rate"].log() + there, torch.minimum(there, back))
    accepted = info["accepted"]
    assert torch.equal(state.position, end.where(accepted[:, None], start))
    assert_mean(accepted.double() - info["acceptance_rate"], 0.0)


def test_a_perfect_proposal_is_always_accepted() -> None:
    kernel = IndependentMetropolis(Density(lambda z: LAW.log_prob(z) + 3.0), LAW)
    _, info = kernel.step(kernel.init(LAW.sample((100,))), torch.Generator().manual_seed(1))
    torch.testing.assert_close(info["acceptance_rate"], torch.ones(100, dtype=F64))


def test_one_proposal_per_chain() -> None:
    centre = torch.tensor([[-50.0, 0.0], [3.0, 70.0]], dtype=F64)
    distribution = Independent(Normal(centre, 1.0), 1)
    kernel = IndependentMetropolis(Density(distribution.log_prob), distribution)
    state, _ = kernel.step(kernel.init(torch.zeros(1000, 2, 2, dtype=F64) + centre))
    assert ((state.position - centre).abs() < 10).all()


def test_draws_continue_the_stream_of_the_generator() -> None:
    """Two draws are those of the global generator from the same seed, which itself stands still."""
    like = torch.empty(5, 2, dtype=F64)
    torch.manual_seed(7)
    expected = [LAW.sample((5,)) for _ in range(2)] + [torch.randn(3)]
    torch.manual_seed(1)
    before, generator = torch.get_rng_state(), torch.Generator().manual_seed(7)
    drawn = [draw_from(LAW, like, generator) for _ in range(2)] + [torch.randn(3, generator=generator)]
    assert all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))
    assert torch.equal(before, torch.get_rng_state())


def test_a_failing_draw_gives_the_global_generator_back() -> None:
    class Broken(MultivariateNormal):
        def sample(self, sample_shape: object = ()) -> Tensor:
            torch.rand(3)
            raise RuntimeError("no draw today")

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="today"):
        draw_from(Broken(torch.zeros(2), torch.eye(2)), torch.empty(5, 2), torch.Generator().manual_seed(7))
    assert torch.equal(before, torch.get_rng_state())


def test_a_momentum_is_left_alone() -> None:
    momentum = torch.randn(5, 2, dtype=F64)
    for kernel in (RandomWalkMetropolis(PROBLEM.density, 0.1), IndependentMetropolis(PROBLEM.density, LAW)):
        state, _ = kernel.step(Phase(PROBLEM.draw_base(5), momentum))
        assert state.momentum is momentum and state.grad is None


@pytest.mark.parametrize("step_size", [0.0, -1.0, float("nan"), torch.tensor([1.0, 0.0])])
def test_a_step_size_must_be_positive(step_size: float | Tensor) -> None:
    with pytest.raises(ValueError, match="step_size must be positive, got"):
        RandomWalkMetropolis(FLAT, step_size)


def test_a_metric_of_another_kind_is_refused() -> None:
    for example in metrics(dim=2)[1:]:
        for kernel in (RandomWalkMetropolis(FLAT, 1.0, example.metric), HMC(FLAT, 1.0, 2, example.metric)):
            for position in (torch.zeros(5, 2), torch.zeros(5, 3, dtype=F64), torch.zeros(1, dtype=F64)):
                with pytest.raises(ValueError, match="the metric does not fit positions"):
                    kernel.init(position)


@pytest.mark.parametrize("distribution", [Normal(torch.zeros(2), 1.0), Categorical(torch.ones(3))])
def test_a_proposal_must_be_over_vectors(distribution: object) -> None:
    with pytest.raises(
        ValueError, match=r"event shape is \[\]: make coordinates into one event with .*Indep"
    ):
        IndependentMetropolis(FLAT, distribution)


@pytest.mark.parametrize(
    ("distribution", "position", "message"),
    [
        (LAW, torch.zeros(5, 3, dtype=F64), "positions have 3 dimensions, the proposal 2"),
        (LAW, torch.zeros(5, 2), "positions are torch.float32 .* proposal is torch.float64"),
        (
            LAW.expand([4]),
            torch.zeros(5, 2, dtype=F64),
            r"batch shape \[4\] must be empty or .* chains \[5\]",
        ),
        (LAW.expand([4]), torch.zeros(2, dtype=F64), r"batch shape \[4\]"),
    ],
)
def test_positions_that_do_not_fit_the_proposal(distribution: object, position: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IndependentMetropolis(FLAT, distribution).init(position)
