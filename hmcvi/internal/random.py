"""Random numbers with the shape, dtype and device of the chains, from the user's generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor


class Sampler(Protocol):
    """What `draw_from` needs of a torch or Pyro distribution."""

    @property
    def batch_shape(self) -> torch.Size: ...

    def sample(self, sample_shape: torch.Size = ...) -> Tensor: ...


@contextmanager
def own_random_numbers(seed: int = 0) -> Iterator[None]:
    """Draw from `seed`, and leave torch's generators as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def standard_normal(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """n ~ N(0, I), one number for each of `like`."""
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def uniform(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """u ~ U[0, 1), one number for each of `like`."""
    return torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def integer(low: int, high: int, generator: torch.Generator | None = None) -> int:
    """One integer for all chains, uniform on low, …, high."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(low, high + 1, (), device=device, generator=generator))


def laplace_variates(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """e ∝ exp(−|e|), one number for each of `like`."""
    size = torch.empty_like(like).exponential_(generator=generator)
    return size * (2 * torch.empty_like(like).bernoulli_(0.5, generator=generator) - 1)


def permutation(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A uniformly random order of 0, …, k−1 for each chain of `like` [..., k]."""
    keys = torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)
    return keys.argsort(-1)


def draw_from(distribution: Sampler, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw from a distribution over vectors, shaped like `like` [..., d].

    Distributions take no generator: torch's global one is given the state of the user's for the draw, and
    restored afterwards.
    """
    shape = like.shape[: like.ndim - 1 - len(distribution.batch_shape)]
    if generator is None:
        return distribution.sample(shape)
    device = generator.device
    module: Any = torch.random if device.type == "cpu" else torch.get_device_module(device)
    place = () if device.type == "cpu" else (device,)
    before = module.get_rng_state(*place)
    try:
        module.set_rng_state(generator.get_state(), *place)
        draw = distribution.sample(shape)
        generator.set_state(module.get_rng_state(*place))
    finally:
        module.set_rng_state(before, *place)
    return draw
