"""Every misuse has its own message, which says what was wrong and what would be right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hmcvi import Density, sample
from hmcvi.kernels import HMC, RandomWalkMetropolis
from hmcvi.sampling import Warmup
from tests.support.problems import F64
from tests.support.sampling_runs import quick

NORMAL = Density(lambda z: -0.5 * z.square().sum(-1))
NAMED = Density(lambda v: -0.5 * (v["a"].square().sum(-1) + v["b"] ** 2), shapes={"a": (2,), "b": ()})
TWO, THREE = torch.ones(3, 2), torch.ones(3)


@pytest.mark.parametrize(
    ("init", "error", "message"),
    [
        (torch.ones(3), ValueError, r"init must be \[chains, d\], one row per chain, got \[3\]"),
        (torch.ones(2, 3, 4), ValueError, r"one row per chain, got \[2, 3, 4\]"),
        (torch.ones(0, 4), ValueError, r"one row per chain, got \[0, 4\]"),
        (torch.ones(4, 0), ValueError, r"one row per chain, got \[4, 0\]"),
        (torch.ones(4, 2, dtype=torch.int64), ValueError, "floating-point numbers, got torch.int64"),
        (np.ones((4, 2)), TypeError, "tensor or a dict of tensors, got ndarray"),
        ([[1.0, 2.0]], TypeError, "tensor or a dict of tensors, got list"),
        ({"a": TWO}, ValueError, r"build Density\(log_prob, shapes={name: shape}\)"),
    ],
)
def test_an_init_that_is_none(init: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sample(HMC(NORMAL, 0.5, 3), init, 3)


@pytest.mark.parametrize(
    ("init", "error", "message"),
    [
        ({"a": TWO}, ValueError, r"expected the variables \['a', 'b'\], got \['a'\]"),
        ({"a": TWO, "b": THREE, "c": THREE}, ValueError, r"got \['a', 'b', 'c'\]"),
        ({"a": TWO.double(), "b": THREE}, ValueError, "different dtypes"),
        ({"a": TWO, "b": torch.ones(2)}, ValueError, r"numbers of chains: {'a': \[3\], 'b': \[2\]}"),
        ({"a": torch.ones(3, 3), "b": THREE}, ValueError, r"a must be \[chains, \*\(2,\)\], got \[3, 3\]"),
        ({"a": TWO, "b": 1.0}, TypeError, "b must be a tensor, got float"),
        (torch.ones(3, 4), ValueError, "fill 3 dimensions, init has 4"),
    ],
)
def test_an_init_of_other_variables(init: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sample(HMC(NAMED, 0.5, 3), init, 3)


@pytest.mark.parametrize("make", [lambda d: HMC(d, 0.1, 2), lambda d: RandomWalkMetropolis(d, 0.1)])
def test_chains_that_start_nowhere_are_named(make: Any) -> None:
    density = Density(lambda z: (z.log() - z).sum(-1))
    start = torch.ones(30, 2)
    start[[3, 7]] = torch.tensor([[-1.0, 1.0], [0.0, 1.0]])
    with pytest.raises(
        ValueError, match=r"2 of 30 chains \(3, 7\): start them where the density is positive"
    ):
        sample(make(density), start, 3)
    start[:] = torch.nan
    with pytest.raises(ValueError, match=r"30 of 30 chains \(0, 1, .*, 9, …\)"):
        sample(make(density), start, 3)


@pytest.mark.parametrize(
    ("log_prob", "error", "message"),
    [
        (
            lambda z: -z.square(),
            ValueError,
            r"one number per chain: \[3\] for positions \[3, 2\], got \[3, 2\]",
        ),
        (lambda z: -z.square().sum(), ValueError, r"one number per chain.*got \[\].*torch.vmap\(log_prob\)"),
        (
            lambda z: -z[:, 0].abs() - z.square().sum(),
            ValueError,
            "changes with the positions of other chains",
        ),
        (lambda z: -z.square().sum(-1).double(), ValueError, "returned torch.float64"),
        (lambda z: 1.0, TypeError, "must return a tensor, got float"),
        (lambda z: -z.detach().square().sum(-1), ValueError, r"without gradient.*without detach\(\)"),
    ],
)
def test_a_log_prob_that_chains_cannot_run_on(log_prob: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sample(HMC(Density(log_prob), 0.5, 3), TWO, 3)


def test_chains_that_a_log_prob_mixes_are_noticed_wherever_they_are() -> None:
    apart = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])
    mixing = HMC(Density(lambda z: -(z - z.mean(0)).square().sum(-1)), 0.5, 3)
    with pytest.raises(ValueError, match="changes with the positions of other chains"):
        sample(mixing, apart, 3)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"num_samples": 0}, ValueError, "num_samples must be at least 1, got 0"),
        ({"thin": 0}, ValueError, "thin must be at least 1, got 0"),
        ({"num_warmup": -1}, ValueError, "num_warmup must be at least 0, got -1"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"num_samples": 1e3}, TypeError, "num_samples must be a whole number, got 1000.0"),
        ({"kernel": NORMAL}, TypeError, r"such as HMC\(density\)"),
        (
            {"kernel": HMC(torch.square)},
            TypeError,
            r"HMC\(hmcvi.Density\(log_prob, dim=d\)\), got HMC\(<built",
        ),
        ({"kernel": HMC}, TypeError, r"such as HMC\(density\)"),
    ],
)
def test_counts_and_kernels_that_are_none(settings: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        quick(**{"kernel": HMC(NORMAL, 0.5, 3), "num_samples": 3, "init": TWO} | settings)


def test_a_log_prob_of_one_vector_is_told_how_to_become_one_of_many() -> None:
    matrix = torch.eye(2)
    with pytest.raises(RuntimeError) as raised:
        sample(HMC(Density(lambda z: -z @ matrix @ z, dim=2)), num_chains=3, num_samples=3)
    assert "positions [3, 2]" in raised.value.__notes__[0] and "torch.vmap" in raised.value.__notes__[0]


@pytest.mark.parametrize("target", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_a_target_acceptance_that_is_no_probability(target: float) -> None:
    with pytest.raises(ValueError, match=r"target_acceptance must lie in \(0, 1\)"):
        Warmup(target_acceptance=target)


def test_a_mass_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="mass must be diagonal, dense or fixed, got 'full'"):
        Warmup(mass="full")


def test_the_second_chain_is_not_the_first() -> None:
    """Chains that start together part: noise is drawn for each."""
    draws = quick(HMC(NORMAL, 0.5, 3), 3, init=torch.zeros(4, 2, dtype=F64))
    assert len(draws.position[:, 0].unique(dim=0)) == 4
