"""Seeds of 64 bits: all of them count, and streams split from one have nothing in common."""

from __future__ import annotations

import pytest
import torch

import hmcvi
from hmcvi.internal.seeds import LARGEST, generator, seed_all, split
from hmcvi.kernels import HMC
from hmcvi.sampling.starts import draw_starts

NORMAL = hmcvi.Density(lambda z: -0.5 * z.square().sum(-1), dim=2)


def test_small_seeds_are_those_of_torch() -> None:
    for seed in (0, 1, 2**32 - 1):
        expected = torch.rand(5, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(torch.rand(5, generator=generator(seed)), expected)


def test_seeds_that_agree_in_32_bits_differ() -> None:
    seeds = [0, 2**32, 2**33, 2**63, LARGEST, 2**32 - 1]
    draws = {tuple(torch.rand(3, generator=generator(seed)).tolist()) for seed in seeds}
    assert len(draws) == len(seeds)
    assert not torch.equal(draw_starts(NORMAL, 4, 0), draw_starts(NORMAL, 4, 2**32))
    zero, large = (
        hmcvi.sample(HMC(NORMAL, 0.5, 2), torch.zeros(2, 2), 5, seed=seed, progress=False, check=False)
        for seed in (0, 2**32)
    )
    assert not torch.equal(zero.position, large.position)
    assert large.start.seed == 2**32


def test_numbers_of_large_seeds_are_uniform_and_normal() -> None:
    rng = generator(2**40)
    assert abs(torch.rand(10**5, generator=rng, dtype=torch.float64).mean() - 0.5) < 5 / 12**0.5 / 10**2.5
    assert abs(torch.randn(10**5, generator=rng, dtype=torch.float64).mean()) < 5 / 10**2.5


def test_splits_do_not_meet() -> None:
    """As seed · 10⁶ + i did for (0, 10⁶) and (1, 0)."""
    seeds = [split(seed, "evaluation", place) for seed in (0, 1, 2**32) for place in (0, 1, 10**6)]
    seeds += [split(0, "evidence", 0), split(0, "evidence")]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed <= LARGEST for seed in seeds)


def test_the_global_generator_is_seeded_alike() -> None:
    with torch.random.fork_rng():
        seed_all(2**40)
        found = torch.rand(5)
        seed_all(3, "evaluation", 1)
        assert not torch.equal(found, torch.rand(5))
    assert torch.equal(found, torch.rand(5, generator=generator(2**40)))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_beyond_64_bits_are_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed must be at least 0"):
        generator(seed)
