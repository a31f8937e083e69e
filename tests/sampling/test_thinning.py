"""Thinned draws are every k-th draw, their statistics account for all transitions, their memory for none."""

from __future__ import annotations

import pytest
import torch

from hmcvi import Density
from hmcvi.kernels import HMC, Compose, LinearSlice, RandomWalkMetropolis
from tests.support.problems import F64
from tests.support.sampling_runs import BANANA, KERNELS, quick


@pytest.mark.parametrize("name", KERNELS)
def test_thinned_draws_are_every_third_draw(name: str) -> None:
    kernel = KERNELS[name](BANANA)
    every, thinned = quick(kernel, 12, 10), quick(kernel, 4, 10, thin=3)
    assert torch.equal(thinned.position, every.position[:, 2::3])
    assert thinned.stats.keys() == every.stats.keys()
    for key, values in every.stats.items():
        triples = values.unflatten(1, (4, 3))
        if key in ("log_prob", "energy"):
            expected = triples[..., -1]
        elif key == "diverged" or key.startswith("num_"):
            expected = triples.sum(-1)
        else:
            expected = triples.to(F64).mean(-1)
        torch.testing.assert_close(thinned.stats[key], expected, check_dtype=False, equal_nan=True, msg=key)


def test_every_divergence_is_counted() -> None:
    """Steps far beyond stability diverge in every transition."""
    draws = quick(HMC(BANANA, 30.0, 5), 4, thin=5)
    assert (draws.stats["diverged"] == 5).all() and draws.stats["diverged"].dtype == torch.int64
    assert (draws.stats["num_gradients"] == 25).all()
    assert (draws.stats["accepted"] == 0).all()


def test_statistics_are_those_of_their_draw() -> None:
    kernel = Compose(HMC(BANANA, 0.8, 3), RandomWalkMetropolis(BANANA, 1.0), LinearSlice(BANANA, 1.0))
    draws = quick(kernel, 20, 5, thin=2)
    assert torch.equal(draws.stats["log_prob"], BANANA.log_prob(draws.position))


def test_the_energy_is_that_of_the_draw() -> None:
    """H ≥ −log γ, and what is above has the distribution of the kinetic energy: ½ χ² of three momenta."""
    draws = quick(HMC(BANANA, 0.5, 3), 400, 100, thin=2, init=torch.zeros(50, 3, dtype=F64))
    kinetic = draws.stats["energy"] + draws.stats["log_prob"]
    assert (kinetic > 0).all()
    assert float(kinetic.mean()) == pytest.approx(1.5, abs=0.05)


def test_memory_does_not_grow_with_what_is_thinned_away() -> None:
    """Positions alive at any time: those set aside for draws, and a few of the transition itself."""
    alive, peak = set(), [0]

    class Counted(RandomWalkMetropolis):
        def step(self, state, generator=None):  # type: ignore[no-untyped-def]
            import weakref

            new, info = super().step(state, generator)
            key = object()
            alive.add(key)
            weakref.finalize(new.position, alive.discard, key)
            peak[0] = max(peak[0], len(alive))
            return new, info

    density = Density(lambda z: -0.5 * z.square().sum(-1))
    quick(Counted(density, 0.5), 5, thin=200)
    assert peak[0] <= 3
