"""Kernels of every kind on one density, and how to tell two runs apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from hmcvi import Density, sample
from hmcvi.internal.settings import state_dict
from hmcvi.kernels import (
    HMC,
    Compose,
    DiscontinuousHMC,
    EllipticalSlice,
    Gibbs,
    IndependentMetropolis,
    Kernel,
    LinearSlice,
    RandomWalkMetropolis,
)
from hmcvi.sampling import Draws, SamplingWarning
from tests.support.problems import F64

SCALES = torch.tensor([0.5, 1.0, 3.0], dtype=F64)
BANANA = Density(lambda z: -0.5 * (z / SCALES).square().sum(-1) - 0.1 * (z[..., 0] - z[..., 1] ** 2) ** 2)
WIDE = torch.distributions.MultivariateNormal(torch.zeros(3, dtype=F64), 4 * torch.eye(3, dtype=F64))

KERNELS: dict[str, Callable[[Density], Kernel]] = {
    "HMC": lambda density: HMC(density, 0.3, 3),
    "HMC of tuned length": lambda density: HMC(density, 0.3),
    "HMC with persistence": lambda density: HMC(density, 0.3, 2, persistence=0.8),
    "HMC with jitter": lambda density: HMC(density, 0.3, 4, jitter=0.6),
    "HMC, a step per chain": lambda density: HMC(density, torch.linspace(0.2, 0.4, 4, dtype=F64)[:, None], 3),
    "RandomWalkMetropolis": lambda density: RandomWalkMetropolis(density, 0.5),
    "IndependentMetropolis": lambda density: IndependentMetropolis(density, WIDE),
    "LinearSlice": lambda density: LinearSlice(density, 1.0, max_step_out=3),
    "EllipticalSlice": lambda density: EllipticalSlice(density, 0.0, 2.0),
    "DiscontinuousHMC": lambda density: DiscontinuousHMC(density, [False, True, False], 0.3, 3),
    "Compose": lambda density: Compose(
        HMC(density, 0.3, 2, persistence=0.7), RandomWalkMetropolis(density, 0.5), LinearSlice(density, 1.0)
    ),
    "Gibbs": lambda density: Gibbs([(0, LinearSlice(density, 1.0)), ([2, 1], HMC(density, 0.3, 2))]),
}


def init(chains: int = 4, dim: int = 3) -> torch.Tensor:
    return torch.randn(chains, dim, dtype=F64, generator=torch.Generator().manual_seed(9))


def quick(kernel: Kernel, num_samples: int, num_warmup: int = 0, **settings: Any) -> Draws:
    """A run too short to converge, which is not what it is for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        start = settings.pop("init", None)
        return sample(
            kernel, init() if start is None else start, num_samples, num_warmup, progress=False, **settings
        )


def assert_same_draws(one: Draws, other: Draws) -> None:
    """Bit for bit: positions, every statistic, where they stand and what made them."""
    assert torch.equal(one.position, other.position)
    assert one.stats.keys() == other.stats.keys()
    for name, values in one.stats.items():
        assert values.dtype == other.stats[name].dtype, name
        assert torch.equal(values.nan_to_num(0.5), other.stats[name].nan_to_num(0.5)), name
    assert torch.equal(one.end.generator, other.end.generator)
    assert_same(state_dict(one.end.state), state_dict(other.end.state))
    assert_same(one.end.settings, other.end.settings)
    assert one.start.same_as(other.start)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other
