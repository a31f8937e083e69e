"""The laws of kernels: they keep their density, one chain or many, and toss only the coins they are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hmcvi import Density, Phase
from hmcvi.kernels import Anneal, Kernel
from tests.contracts.members import KERNELS
from tests.problems import F64, Mixture
from tests.statistics import assert_uniform

PROBLEM = Mixture()
DIRECTIONS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-0.8, 0.6]], dtype=F64)

MakeKernel = Callable[..., Kernel]
over_kernels = pytest.mark.parametrize("make_kernel", KERNELS.values(), ids=KERNELS)


def assert_drawn_from_the_mixture(z: Tensor) -> None:
    for direction in DIRECTIONS:
        assert_uniform(PROBLEM.projected_cdf(z, direction))


def run(kernel: Kernel, position: Tensor, num_steps: int, seed: int = 1000) -> tuple[Tensor, list[dict]]:
    generator = torch.Generator().manual_seed(seed)
    state, reports = kernel.init(position), []
    for _ in range(num_steps):
        state, info = kernel.step(state, generator)
        reports.append(info)
    return state.position, reports


@over_kernels
def test_exact_draws_stay_exact_draws(make_kernel: MakeKernel) -> None:
    """Started at stationarity, on a target without symmetry, with rejections that matter."""
    torch.manual_seed(0)
    start = PROBLEM.draw(40_000)
    assert_drawn_from_the_mixture(start)
    end, reports = run(make_kernel(PROBLEM.density), start, 4)
    assert_drawn_from_the_mixture(end)
    rejected = 1 - torch.stack([info["accepted"].double().mean() for info in reports]).mean()
    assert rejected > 0.02, f"{rejected} rejected: the acceptance step was not tested"
    assert ((end - start).norm(dim=-1) > 0.5).double().mean() > 0.5, "the chains hardly moved"


@over_kernels
def test_forgets_a_wrong_start(make_kernel: MakeKernel) -> None:
    torch.manual_seed(0)
    end, _ = run(make_kernel(PROBLEM.density), PROBLEM.draw_base(5_000), 60)
    assert_drawn_from_the_mixture(end)


@over_kernels
def test_rank_of_the_truth_among_posterior_draws_is_uniform(make_kernel: MakeKernel) -> None:
    """Simulation-based calibration of θ ~ N(0, I), y ~ N(A θ, I), one posterior per chain.

    The truth is a posterior draw: placed at random in a stretch of a reversible chain, run from it in both
    directions, its rank is exactly uniform however slowly the chain mixes; rejections make ties, broken
    at random.  [Gandy & Scott 2020]
    """
    torch.manual_seed(0)
    count, num_draws = 8_000, 7
    mixing = torch.tensor([[1.0, 0.6], [-0.3, 0.8]], dtype=F64)
    truth = torch.randn(count, 2, dtype=F64)
    y = truth @ mixing.T + torch.randn(count, 2, dtype=F64)

    def log_joint(theta: Tensor, y: Tensor) -> Tensor:
        return -0.5 * (theta.square() + (y - theta @ mixing.T).square()).sum(-1)

    kernel = make_kernel(Density(log_joint, y))
    before = torch.randint(0, num_draws + 1, (count,))
    below, ties = torch.zeros(count, 2, dtype=F64), torch.zeros(count, 2, dtype=F64)
    for seed, length in ((1000, before), (1001, num_draws - before)):
        generator, state = torch.Generator().manual_seed(seed), kernel.init(truth)
        for index in range(num_draws):
            state, _ = kernel.step(state, generator)
            counted = (index < length)[:, None]
            below += (state.position < truth) & counted
            ties += (state.position == truth) & counted
    assert_uniform((below + torch.rand_like(ties) * (ties + 1)) / (num_draws + 1))


@over_kernels
def test_each_chain_has_its_own_density(make_kernel: MakeKernel) -> None:
    """Chains of one batch, each towards its own centre, arrive at their own centres."""
    torch.manual_seed(0)
    centre = torch.tensor([[-5.0, 0.0], [3.0, 1.0], [0.0, 8.0]], dtype=F64)
    density = Density(lambda z, c: -0.5 * (z - c).square().sum(-1), centre)
    start = centre + torch.randn(20_000, 3, 2, dtype=F64)
    end, _ = run(make_kernel(density), start, 3)
    normal = torch.distributions.Normal(torch.tensor(0.0, dtype=F64), 1.0)
    assert_uniform(normal.cdf(end - centre))


@over_kernels
@pytest.mark.parametrize("batch", [(), (5,), (3, 5), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes_are_kept(
    make_kernel: MakeKernel, batch: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    kernel = make_kernel(PROBLEM.density, dtype)
    state, info = kernel.step(kernel.init(PROBLEM.draw_base(*batch).to(dtype)))
    assert (state.position.shape, state.position.dtype) == ((*batch, 2), dtype)
    assert {report.shape for report in info.values()} == {torch.Size(batch)}


@over_kernels
def test_randomness_comes_from_the_generator(make_kernel: MakeKernel) -> None:
    start = PROBLEM.draw_base(10)
    kernel = make_kernel(PROBLEM.density)
    before = torch.get_rng_state()
    first, _ = run(kernel, start, 3, seed=5)
    again, _ = run(kernel, start, 3, seed=5)
    other, _ = run(kernel, start, 3, seed=6)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again) and not torch.equal(first, other)


@over_kernels
def test_a_state_can_be_resumed(make_kernel: MakeKernel) -> None:
    """One generator carried through two runs gives the run in one piece."""
    start = PROBLEM.draw_base(10)
    kernel = make_kernel(PROBLEM.density)
    whole, _ = run(kernel, start, 6)
    generator, state = torch.Generator().manual_seed(1000), kernel.init(start)
    for _ in range(3):
        state, _ = kernel.step(state, generator)
    state = Phase(*(None if part is None else part.clone() for part in state))
    for _ in range(3):
        state, _ = kernel.step(state, generator)
    assert torch.equal(state.position, whole)


@over_kernels
def test_a_chain_that_meets_no_number_stays(make_kernel: MakeKernel) -> None:
    """Where log γ is NaN every proposal is rejected, for that chain alone."""

    def log_prob(z: Tensor, broken: Tensor) -> Tensor:
        return PROBLEM.log_prob(z).where(~broken, torch.nan)

    broken = torch.tensor([False, True, False])
    start = PROBLEM.draw_base(3)
    end, reports = run(make_kernel(Density(log_prob, broken)), start, 5)
    healthy, _ = run(make_kernel(PROBLEM.density), start, 5)
    assert torch.equal(end[1], start[1])
    torch.testing.assert_close(end[[0, 2]], healthy[[0, 2]])
    for info in reports:
        assert info["diverged"].tolist() == [False, True, False]
        assert not info["accepted"][1] and info["acceptance_rate"][1] == 0


@over_kernels
def test_annealed_at_one_keeps_exact_draws(make_kernel: MakeKernel) -> None:
    torch.manual_seed(0)
    start = PROBLEM.draw(40_000)
    torch.manual_seed(1)
    transition = Anneal(make_kernel, beta=1.0)(Phase(start), PROBLEM.density)
    assert_drawn_from_the_mixture(transition.state.position)
    change = PROBLEM.log_prob(start) - PROBLEM.log_prob(transition.state.position)
    torch.testing.assert_close(transition.log_ratio, change)
