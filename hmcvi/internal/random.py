"""Random numbers with the shape, dtype and device of the chains, from the user's generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hmcvi.internal.seeds import seed_all


class Sampler(Protocol):
    """What `draw_from` needs of a torch or Pyro distribution."""

    @property
    def batch_shape(self) -> torch.Size: ...

    def sample(self, sample_shape: torch.Size = ...) -> Tensor: ...


@contextmanager
def own_random_numbers(seed: int = 0) -> Iterator[None]:
    """Draw from `seed`, and leave torch's generators as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        seed_all(seed)
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


def standard_normal_(room: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """n ~ N(0, I), in place."""
    return room.normal_(generator=generator)


def uniform_(room: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """u ~ U[0, 1), in place."""
    return room.uniform_(generator=generator)


def integer_(room: Tensor, low: int, high: int, generator: torch.Generator | None = None) -> Tensor:
    """Integers on low, …, high, in place."""
    return room.random_(low, high + 1, generator=generator)


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

    Distributions take no generator: `Drawing` hands it to what they call.
    """
    shape = like.shape[: like.ndim - 1 - len(distribution.batch_shape)]
    if generator is None:
        return distribution.sample(shape)
    with Drawing(generator):
        return distribution.sample(shape)


class Drawing(TorchDispatchMode):
    """Within it, what this thread draws by torch comes from a generator, not from the one that all share."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in op.tags and self._is_on_device(args, kwargs):
            if not any(argument.name == "generator" for argument in op._schema.arguments):
                op = getattr(op.overloadpacket, f"{op._overloadname}_generator".removeprefix("default_"), op)
            if any(argument.name == "generator" for argument in op._schema.arguments):
                kwargs = {**kwargs, "generator": kwargs.get("generator") or self.generator}
        return op(*args, **kwargs)

    def _is_on_device(self, args: Any, kwargs: Any) -> bool:
        found = next((a.device for a in args if isinstance(a, Tensor)), kwargs.get("device") or "cpu")
        return torch.device(found).type == self.generator.device.type
