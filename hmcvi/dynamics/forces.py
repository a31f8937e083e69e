"""Cheap stand-ins for the force of a density: ways to make γ̃, whose force moves, of γ, which weighs."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.internal.checks import whole
from hmcvi.internal.context import Randomness

Approximation = Callable[[Density], Density]
RANK = 64  # of a surrogate, unless it is given


class ForcedDensity(Density):
    """log γ of one density with the force ∇log γ̃ of another.

    Kicks and drifts are reversible and preserve volume whatever the force is, so that Hamiltonian kernels
    that accept by the energies of γ leave γ invariant.
    """

    def __init__(self, target: Density, approximate: Density) -> None:
        super().__init__(target._log_prob, base=target.base, dim=target.dim)
        self.layout = target.layout
        self.target, self.approximate = target, approximate

    def _log_prob(self, position: Tensor) -> Tensor:
        return self.target._log_prob(position)

    def force(self, position: Tensor) -> Tensor:
        """∇log γ̃(z)  [..., d]"""
        return self.approximate.value_and_grad(position)[1]

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        return self.target.log_prob(position), self.force(position)

    def check(self, position: Tensor, differentiable: bool = True) -> None:
        self.target.check(position, differentiable=False)
        self.approximate.check(position, differentiable)

    def parameters(self, position: Tensor) -> list[Tensor]:
        return self.target.parameters(position) + self.approximate.parameters(position)

    def conditional(self, position: Tensor, block: slice | Tensor) -> Density:
        return ForcedDensity(
            self.target.conditional(position, block), self.approximate.conditional(position, block)
        )

    def with_base(self, base: Density) -> Self:
        return type(self)(self.target.with_base(base), self.approximate.with_base(base))

    def bridge(self, beta: float | Tensor) -> Density:
        return ForcedDensity(self.target.bridge(beta), self.approximate.bridge(beta))


class HalfProducts(Density):
    """The same log density with its matrix products in bfloat16, forwards and backwards.

    Values have about three digits.  Double precision is left as it is, and so are products on a CPU that
    has none of bfloat16.
    """

    def __init__(self, target: Density) -> None:
        super().__init__(target._log_prob, base=target.base, dim=target.dim)
        self.target, self._on_cpu = target, _cpu_has_bfloat16()

    def _log_prob(self, position: Tensor) -> Tensor:
        device = position.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._on_cpu or device != "cpu"):
            return self.target._log_prob(position).to(position.dtype)

    def parameters(self, position: Tensor) -> list[Tensor]:
        return self.target.parameters(position)


@functools.cache
def _cpu_has_bfloat16() -> bool:
    """Whether the CPU has instructions for products of bfloat16; a line if it has none."""
    if not (found := has_bfloat16()):
        warnings.warn(
            "this processor has no instructions for products of bfloat16 (AVX-512 BF16 or AMX), which are "
            "slower than full ones without: force=bf16 computes full ones",
            stacklevel=3,
        )
    return found


def has_bfloat16() -> bool:
    """Whether the CPU multiplies in bfloat16 by instructions of its own, which torch emulates on others."""
    try:
        runs = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # torch was built without oneDNN
        return False
    has = torch.cpu.get_capabilities()
    emulates = has["architecture"] == "x86_64" and not (has["avx512_bf16"] or has["amx_bf16"])
    return runs and not emulates


@runtime_checkable
class Observed(Protocol):
    """A density that depends on observations by a sum over them."""

    @property
    def num_observed(self) -> int: ...

    def subset(self, kept: Tensor) -> Density:
        """The same density by the observations `kept` [k] alone, their sum scaled up."""


@runtime_checkable
class Decoded(Protocol):
    """A density with a decoder."""

    def low_rank(self, rank: int) -> Density:
        """The same density with a last layer of low rank in the decoder."""


class Subset:
    """γ̃ by `size` of the observations, a random choice for each pass of a chain and all its data."""

    def __init__(self, size: int) -> None:
        self.size = whole("size of the subset", size, 1)

    def draw(self, randomness: Randomness) -> Approximation:
        """The approximation by observations that are chosen now."""

        def approximate(target: Density) -> Density:
            if not isinstance(target, Observed):
                raise ValueError(
                    "a subset of the observations needs a density that knows them, such as the posterior of "
                    f"a VAE, got a {type(target).__name__}"
                )
            self.check(target.num_observed)
            return target.subset(randomness.subset(target.num_observed, self.size))

        return approximate

    def check(self, num_observed: int) -> None:
        """Refuse a subset of fewer observations than it has."""
        if self.size > num_observed:
            raise ValueError(
                f"force=subset({self.size}) is larger than the data: there are {num_observed} observations"
            )


class Surrogate:
    """γ̃ by the decoder with a last layer of this rank, which follows the decoder as it is trained."""

    def __init__(self, rank: int = RANK) -> None:
        self.rank = whole("rank of the surrogate", rank, 1)

    def __call__(self, target: Density) -> Density:
        if not isinstance(target, Decoded):
            raise ValueError(
                "a surrogate needs a density with a decoder, such as the posterior of a VAE, got a "
                f"{type(target).__name__}"
            )
        return target.low_rank(self.rank)


def force_of(name: str) -> Approximation | Subset | None:
    """What "full" (None), "bf16", "subset(k)", "surrogate" or "surrogate(rank)" stand for."""
    if found := re.fullmatch(r"(subset|surrogate)\((\d{1,9})\)", name):
        kind, number = found.groups()
        return Subset(int(number)) if kind == "subset" else Surrogate(int(number))
    if name not in NAMED:
        known = "full, bf16, subset(NUMBER), surrogate, surrogate(RANK)"
        raise ValueError(f"force must be one of {known}, got {name!r}")
    return NAMED[name]


NAMED: dict[str, Approximation | None] = {"full": None, "bf16": HalfProducts, "surrogate": Surrogate()}
