"""HMC whose momentum outlives a transition."""

from __future__ import annotations

import math

import pytest
import torch

from hmcvi import Density, Phase
from hmcvi.flows import System, leapfrog
from hmcvi.kernels import HMC, CholeskyMetric
from tests.support.problems import F64, Mixture

PROBLEM = Mixture()
METRIC = CholeskyMetric(torch.tensor([[1.2, 0.0], [-0.4, 1.1]], dtype=F64))
over_persistence = pytest.mark.parametrize("alpha", [0.9, 0.3, -0.5])


def start(count: int = 50) -> Phase:
    torch.manual_seed(0)
    position = PROBLEM.draw(count)
    return Phase(position, METRIC.sample(position)).evaluate(PROBLEM.density)


def refreshed(state: Phase, alpha: float, seed: int) -> Phase:
    """u = α v + √(1−α²) L n, with the numbers that the kernel will draw."""
    noise = torch.randn(state.position.shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return state._replace(momentum=alpha * state.momentum + math.sqrt(1 - alpha**2) * METRIC.color(noise))


@over_persistence
def test_an_accepted_momentum_goes_on_and_a_rejected_one_turns_round(alpha: float) -> None:
    kernel, state = HMC(PROBLEM.density, 1.2, 3, METRIC, persistence=alpha), start()
    new, info = kernel.step(state, torch.Generator().manual_seed(3))
    before = refreshed(state, alpha, 3)
    after = leapfrog(System(PROBLEM.density, METRIC), before, torch.tensor(1.2, dtype=F64), 3)
    accepted = info["accepted"]
    assert 5 < accepted.sum() < 45
    for part, moved, stayed in (
        (new.position, after.position, state.position),
        (new.momentum, after.momentum, -before.momentum),
        (new.grad, after.grad, state.grad),
    ):
        torch.testing.assert_close(part[accepted], moved[accepted])
        torch.testing.assert_close(part[~accepted], stayed[~accepted])


def test_no_persistence_forgets_the_momentum() -> None:
    """α = 0: whatever the momentum was, the transition is that of plain HMC."""
    persistent = HMC(PROBLEM.density, 0.9, 3, METRIC, persistence=0.7)
    none, plain = persistent.replace(persistence=0.0), HMC(PROBLEM.density, 0.9, 3, METRIC)
    state = start()
    ends = [
        kernel.step(s, torch.Generator().manual_seed(3))[0].position
        for kernel, s in ((none, state), (plain, state), (plain, state._replace(momentum=None)))
    ]
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[1], ends[2])
    assert not torch.equal(ends[0], persistent.step(state, torch.Generator().manual_seed(3))[0].position)
    almost, _ = persistent.replace(persistence=1e-12).step(state, torch.Generator().manual_seed(3))
    torch.testing.assert_close(almost.position, ends[0])


def test_the_first_momentum_is_drawn_afresh() -> None:
    """Without a momentum there is nothing to persist: the first transition is that of plain HMC."""
    bare = start()._replace(momentum=None)
    persistent, plain = (HMC(PROBLEM.density, 0.9, 3, METRIC, persistence=alpha) for alpha in (0.7, 0.0))
    ends = [kernel.step(bare, torch.Generator().manual_seed(3))[0] for kernel in (persistent, plain)]
    assert torch.equal(ends[0].position, ends[1].position) and ends[0].momentum is not None


@over_persistence
def test_momentum_is_remembered_at_its_rate(alpha: float) -> None:
    """Without forces every move is accepted and v_t = α v_{t−1} + noise: corr(v_0, v_t) = α^t."""
    flat = Density(lambda z: 0 * z.sum(-1))
    kernel = HMC(flat, 0.1, 1, persistence=alpha)
    torch.manual_seed(0)
    first = torch.randn(20_000, 2, dtype=F64)
    state, generator = Phase(torch.zeros_like(first), first), torch.Generator().manual_seed(1)
    for power in range(1, 4):
        state, _ = kernel.step(state, generator)
        residual = state.momentum - alpha**power * first
        error = math.sqrt(1 - alpha ** (2 * power)) / math.sqrt(residual.numel())
        assert abs((residual * first).mean()) < 4.5 * error
        assert abs(state.momentum.square().mean() - 1) < 4.5 * math.sqrt(2 / residual.numel())


@pytest.mark.parametrize("alpha", [1.0, -1.0, 1.5, float("nan")])
def test_persistence_has_limits(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"persistence must lie in \(-1, 1\)"):
        HMC(PROBLEM.density, 0.1, 3, persistence=alpha)


@pytest.mark.parametrize("jitter", [-0.1, 1.1])
def test_jitter_has_limits(jitter: float) -> None:
    with pytest.raises(ValueError, match=r"jitter must lie in \[0, 1\]"):
        HMC(PROBLEM.density, 0.1, 3, jitter=jitter)


def test_random_lengths_are_uniform_on_their_range() -> None:
    """L = 4, jitter ½: 2, …, 6, each as often; one length for all chains of a transition."""
    kernel = HMC(PROBLEM.density, 0.01, 4, jitter=0.5)
    state, generator, lengths = kernel.init(PROBLEM.draw(2)), torch.Generator().manual_seed(0), []
    for _ in range(500):
        state, info = kernel.step(state, generator)
        assert (info["num_gradients"] == info["num_gradients"][0]).all()
        lengths.append(int(info["num_gradients"][0]))
    counts = torch.tensor([lengths.count(length) for length in range(2, 7)])
    assert counts.sum() == 500 and (counts - 100).abs().max() < 4.5 * math.sqrt(500 * 0.2 * 0.8)
