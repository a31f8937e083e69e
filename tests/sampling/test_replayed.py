"""Runs by recorded operations: the same draws to the last bit, and no Python of log_prob."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Gamma, Normal
from torch.testing import assert_close

from hmcvi import Density, Draws, sample
from hmcvi.kernels import HMC
from hmcvi.sampling.replayed import ReplayedDensity, replayed
from tests.support.problems import F64

DATA = torch.linspace(-1, 2, 7, dtype=F64)
LogProb = Callable[[Tensor], Tensor]


def banana(z: Tensor) -> Tensor:
    bend = (z[..., 1] - z[..., 0].square()) / 0.5
    return -0.5 * (z[..., ::2].square().sum(-1) + bend.square())


def distributions(z: Tensor) -> Tensor:
    """With validation of their arguments; scales that overflow do not pass it."""
    scale = z[..., 0].exp()
    data = Normal(z[..., 1, None], scale[..., None]).log_prob(DATA).sum(-1)
    return data + Gamma(2.0, 1.0).log_prob(scale) + Normal(0.0, 1.0).log_prob(z[..., 1:]).sum(-1)


def process(z: Tensor) -> Tensor:
    """A Gaussian process, with matrices that have no factor where the length is large."""
    gaps = (DATA - DATA[:, None]).square()
    kernel = torch.exp(-0.5 * gaps * torch.exp(-2 * z[..., 0, None, None])) + 1e-9 * torch.eye(7, dtype=F64)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(kernel), DATA[:, None], upper=False)
    return -0.5 * (white.squeeze(-1).square().sum(-1) * 1e-3 + z.square().sum(-1))


def each(z: Tensor) -> Tensor:
    def one(row: Tensor) -> Tensor:
        a, b, c = row
        return -0.5 * (torch.stack([a * b, b, c]).square().sum() + a.abs())

    return torch.vmap(one)(z)


def run(log_prob: LogProb, compile: bool | str) -> Draws:
    kernel = HMC(Density(log_prob, dim=3), 0.1, compile=compile)
    return sample(kernel, num_chains=8, num_samples=300, num_warmup=100, progress=False, check=False)


@pytest.mark.parametrize("log_prob", [banana, distributions, process, each], ids=lambda f: f.__name__)
def test_draws_are_the_same_bits(log_prob: LogProb) -> None:
    calls = [0, 0]

    def counted(index: int) -> LogProb:
        def call(z: Tensor) -> Tensor:
            calls[index] += 1
            return log_prob(z)

        return call

    torch.set_default_dtype(F64)
    try:
        found, expected = run(counted(0), "auto"), run(counted(1), False)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found.position, expected.position)
    for name, values in expected.stats.items():  # NaN where both energies are infinite
        assert_close(found.stats[name], values, rtol=0, atol=0, equal_nan=True)
    assert calls[0] < 0.6 * calls[1]
    assert found.kernel is not None and not isinstance(found.kernel.density, ReplayedDensity)


def test_data_may_change_between_runs() -> None:
    center = torch.zeros(2, dtype=F64)
    kernel = HMC(Density(lambda z: -0.5 * (z - 2 * center).square().sum(-1)), 0.5, 5)
    start = torch.zeros(8, 2, dtype=F64)
    sample(kernel, start, 100, 0, progress=False, check=False)
    center += 5
    moved = sample(kernel, start + 10, 100, 0, progress=False, check=False)
    assert (moved.position.mean((0, 1)) - 10).abs().max() < 0.5


def by_numpy(z: Tensor) -> Tensor:
    return -0.5 * z.square().sum(-1) * float(z.detach().numpy().shape[0] + z.detach().numpy()[0, 0])


def by_values(z: Tensor) -> Tensor:
    return -0.5 * z.square().sum(-1) if z.sum() > 0 else -z.abs().sum(-1)


def selected(z: Tensor) -> Tensor:
    return -0.5 * z.square().sum(-1) - 0 * z[z > 0].sum()


@pytest.mark.parametrize("log_prob", [by_numpy, by_values, selected], ids=lambda f: f.__name__)
def test_what_is_more_than_tensor_operations_is_left_as_it_is(log_prob: LogProb) -> None:
    density = Density(log_prob)
    assert replayed(density, torch.rand(6, 3, dtype=F64)) is density


def test_large_tensors_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    density, position = Density(banana), torch.rand(6, 3, dtype=F64)
    assert replayed(density, position) is not density
    monkeypatch.setattr("hmcvi.sampling.replayed.MOST_NUMBERS", 100)
    assert replayed(density, position) is density


def test_chains_that_fail_are_left_to_log_prob() -> None:
    """Scales that are negative do not pass validation; one chain of them costs the others nothing."""
    density = Density(lambda z: Normal(0.0, z[..., 0]).log_prob(z[..., 1]))
    position = torch.rand(6, 2, dtype=F64) + 0.5
    again = replayed(density, position)
    assert isinstance(again, ReplayedDensity)
    position[2, 0] = -1.0
    with torch.no_grad():
        value, grad = again.value_and_grad(position)
    expected, expected_grad = density.value_and_grad(position)
    assert value[2].isnan() and value[:2].isfinite().all()
    torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(grad, expected_grad, rtol=0, atol=0, equal_nan=True)


def test_other_shapes_and_gradients_of_gradients_are_those_of_the_density() -> None:
    density, position = Density(banana), torch.rand(6, 3, dtype=F64)
    again = replayed(density, position)
    value, grad = again.value_and_grad(position.requires_grad_())
    assert value.requires_grad and grad.requires_grad
    assert torch.equal(again.value_and_grad(position[:2].detach())[0], density.log_prob(position[:2]))


def test_symmetric_matrices_and_their_transposes_are_two_constants() -> None:
    """Of the same numbers, but products with them round differently."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(8, 8, dtype=F64, generator=generator) * torch.logspace(-3, 3, 8, dtype=F64)
    precision, position = root.mT @ root, torch.randn(16, 8, dtype=F64, generator=generator)
    density = Density(lambda z: -0.5 * ((z @ precision) * z).sum(-1), dim=8)
    assert isinstance(replayed(density, position), ReplayedDensity)
