"""Densities evaluated for some chains at a time: the draws of all at once."""

from __future__ import annotations

import pytest
import torch

from hmcvi import Density
from hmcvi.kernels import HMC, Gibbs, LinearSlice
from hmcvi.sampling import in_batches
from tests.support.problems import F64
from tests.support.sampling_runs import BANANA, KERNELS, init, quick

CENTRES = torch.linspace(-3, 3, 7, dtype=F64)[:, None]
NAMED = Density(lambda v: -0.5 * (v["a"].square() + v["b"].square().sum(-1)), shapes={"a": (), "b": (2,)})


@pytest.mark.parametrize(
    "name", ["HMC of tuned length", "LinearSlice", "DiscontinuousHMC", "Compose", "Gibbs"]
)
@pytest.mark.parametrize("size", [1, 3])
def test_draws_are_those_of_all_chains_at_once(name: str, size: int) -> None:
    runs = [
        quick(KERNELS[name](density), 10, 30, init=init(7)) for density in (BANANA, in_batches(BANANA, size))
    ]
    torch.testing.assert_close(runs[0].position, runs[1].position, rtol=1e-6, atol=1e-8)
    assert torch.equal(runs[0].end.generator, runs[1].end.generator)


def test_log_prob_sees_no_more_chains_than_it_was_promised() -> None:
    seen = []

    def log_prob(z: torch.Tensor) -> torch.Tensor:
        seen.append(len(z))
        return -0.5 * z.square().sum(-1)

    quick(HMC(in_batches(Density(log_prob), 3), 0.3), 5, 20, init=init(7))
    assert max(seen) == 3


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_tensors_with_a_row_for_each_chain_go_with_them(size: int) -> None:
    own = Density(lambda z, centre: -0.5 * (z - centre).square().sum(-1), CENTRES)
    common = Density(lambda z, data: -0.5 * (z[..., None, :1] - data).square().sum((-1, -2)), CENTRES)
    position = init(7)
    for density in (own, common):
        batched = in_batches(density, size)
        assert torch.equal(batched.log_prob(position), density.log_prob(position))
        for one, other in zip(
            batched.value_and_grad(position), density.value_and_grad(position), strict=True
        ):
            torch.testing.assert_close(one, other)


def test_blocks_and_names_stay() -> None:
    def kernel(density: Density) -> Gibbs:
        return Gibbs({"a": LinearSlice(density, 1.0), "b": HMC(density, 0.3, 2)})

    draws = [quick(kernel(density), 5, init=init(7)) for density in (NAMED, in_batches(NAMED, 2))]
    torch.testing.assert_close(draws[0]["b"], draws[1]["b"])


def test_derivatives_go_through_batches() -> None:
    position = init(5).requires_grad_()
    _, grad = in_batches(BANANA, 2).value_and_grad(position)
    _, whole = BANANA.value_and_grad(position)
    (once,), (again,) = (torch.autograd.grad(g.square().sum(), position) for g in (grad, whole))
    torch.testing.assert_close(once, again)


def test_a_density_that_is_not_positive_somewhere() -> None:
    position = init(5)
    position[3] = torch.nan
    value, grad = in_batches(BANANA, 2).finite_value_and_grad(position)
    whole, whole_grad = BANANA.finite_value_and_grad(position)
    assert torch.equal(value, whole) and torch.equal(grad, whole_grad)


def test_batches_of_none_are_refused() -> None:
    with pytest.raises(ValueError, match="num_chains must be at least 1, got 0"):
        in_batches(BANANA, 0)
