"""Threads: nothing that all of them share is ever changed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Exponential, Gamma, LKJCholesky, Normal, Uniform, VonMises

import hmcvi
from hmcvi.internal.random import draw_from
from hmcvi.kernels import HMC


def in_threads(work: Callable[[], object], number: int = 3) -> list[BaseException]:
    """What went wrong in threads that all do the same at once."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.fixture(autouse=True)
def validating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", True)


def falling(z: Tensor) -> Tensor:
    """Of which validation refuses every scale that is lost in rounding."""
    return Normal(0.0, z[..., 0].exp(), validate_args=True).log_prob(z[..., 1]) - z[..., 0].square()


def test_a_density_that_validates_leaves_validation_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    position = torch.tensor([[0.0, 1.0], [-1e4, 0.0], [torch.nan, 0.0]])
    monkeypatch.setattr(Distribution, "set_default_validate_args", lambda _: 1 / 0)

    def work() -> None:
        for _ in range(50):
            value, _ = hmcvi.Density(falling).finite_value_and_grad(position)
            assert value.isfinite().tolist() == [True, False, False]
            assert Distribution._validate_args
            with pytest.raises(ValueError, match="Expected parameter scale"):
                Normal(0.0, torch.tensor(-1.0))

    assert not in_threads(work)


def test_chains_in_threads_are_those_of_one() -> None:
    kernel = HMC(hmcvi.Density(falling), 0.3, 2)

    def run() -> Tensor:
        return hmcvi.sample(kernel, torch.ones(4, 2), 30, num_warmup=20, progress=False, check=False).position

    expected = run()
    found: list[Tensor] = []
    assert not in_threads(lambda: found.append(run()))
    assert len(found) == 3 and all(torch.equal(position, expected) for position in found)


@pytest.mark.parametrize(
    "distribution",
    [
        Normal(torch.zeros(3), 1.0),
        Gamma(torch.ones(3), 1.0),
        Uniform(torch.zeros(3), 1.0),
        VonMises(torch.zeros(3), 1.0),
        LKJCholesky(3),
        Exponential(torch.ones(3)),
    ],
    ids=lambda distribution: type(distribution).__name__,
)
def test_draws_with_a_generator_leave_the_global_one_alone(
    distribution: Distribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are those that the global one would have given."""
    size = torch.empty(2, *distribution.batch_shape, 1)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = distribution.sample(torch.Size([2]))
    before = torch.get_rng_state()
    monkeypatch.setattr(torch.random, "set_rng_state", lambda *_: 1 / 0)
    monkeypatch.setattr(torch, "set_rng_state", lambda *_: 1 / 0)
    found = draw_from(distribution, size, torch.Generator().manual_seed(5))
    assert torch.equal(found, expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_evidence_in_threads_is_that_of_one() -> None:
    base = torch.distributions.Independent(Normal(torch.zeros(2), 2.0), 1)
    target = hmcvi.Density(lambda z: -0.5 * z.square().sum(-1))

    def run() -> float:
        return hmcvi.evidence.ais(base, target, 10, 8, seed=3, progress=False).log_z.item()

    expected, before = run(), torch.get_rng_state()
    found: list[float] = []
    assert not in_threads(lambda: found.append(run()))
    assert found == [expected] * 3
    assert torch.equal(torch.get_rng_state(), before)


def test_models_of_pyro_take_turns() -> None:
    def model() -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        pyro.sample("x", dist.Normal(0.0, scale), obs=torch.tensor(0.3))

    density = hmcvi.pyro.density_from_pyro(model)
    position = torch.linspace(-1, 1, 5)[:, None]
    expected = density.log_prob(position)

    def work() -> None:
        for _ in range(30):
            assert torch.equal(density.log_prob(position), expected)

    assert not in_threads(work)
    assert Distribution._validate_args
