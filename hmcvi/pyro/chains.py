"""Chains of guides, by name or made for the latents of a model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hmcvi.chain import Step
from hmcvi.internal.checks import at_least, choose
from hmcvi.kernels import annealed_chain, hamiltonian_chain

MakeChain = Callable[..., Step]  # (dim=…, context_dim=…) -> chain

MAX_ENERGY_ERROR = 30.0


@dataclass(frozen=True)
class ChainSettings:
    """What the guides' own chains are made of; None: what suits the kind of chain."""

    num_hmc: int | None
    num_leapfrog: int | None
    partial: bool | float
    mass: str
    accept: str | None
    hidden: Sequence[int]
    initial_step_size: float | None
    reverse_sees: Sequence[str]

    def __post_init__(self) -> None:
        if self.num_hmc is not None:
            at_least(0, num_hmc=self.num_hmc)
        if self.num_leapfrog is not None:
            at_least(1, num_leapfrog=self.num_leapfrog)


def _annealed(settings: ChainSettings, reverse: str | None = None) -> MakeChain:
    if settings.accept == "nn":
        raise ValueError("accept='nn' belongs to chain='hamiltonian'; an annealed chain may have 'simple'")
    return functools.partial(
        annealed_chain,
        num_steps=8 if settings.num_hmc is None else settings.num_hmc,
        num_leapfrog=settings.num_leapfrog or 1,
        partial=settings.partial,
        mass=settings.mass,
        accept=settings.accept,
        initial_step_size=settings.initial_step_size or 0.5,
        reverse=reverse,
        reverse_sees=settings.reverse_sees,
        hidden=settings.hidden,
        max_energy_error=MAX_ENERGY_ERROR,
    )


def _hamiltonian(settings: ChainSettings) -> MakeChain:
    return functools.partial(
        hamiltonian_chain,
        num_hmc=3 if settings.num_hmc is None else settings.num_hmc,
        num_leapfrog=settings.num_leapfrog or 4,
        partial=settings.partial,
        mass=settings.mass,
        accept=settings.accept,
        hidden=settings.hidden,
        initial_step_size=settings.initial_step_size or 0.2,
        reverse_sees=settings.reverse_sees,
    )


CHAINS: dict[str, Callable[[ChainSettings], MakeChain]] = {
    "annealed": _annealed,
    "ldvi": functools.partial(_annealed, reverse="gaussian"),
    "hamiltonian": _hamiltonian,
}


def chain_maker(chain: str | MakeChain | None, settings: ChainSettings) -> MakeChain:
    """The function that makes a chain for so many latents.

    chain: a name of `CHAINS`, or a builder whose other arguments are given, such as
    functools.partial(annealed_chain, num_steps=10).  None: annealed, which needs no acceptance.
    """
    if chain is None:
        chain = "annealed" if settings.accept is None else "hamiltonian"
    if isinstance(chain, str):
        make = choose("chain", chain, CHAINS)(settings)
        make(dim=1, context_dim=1)  # refuses wrong settings at once
        return make
    missing = _missing(chain)
    if missing:
        raise TypeError(
            f"chain must be a function of dim and context_dim alone: give {', '.join(missing)}, as in "
            "functools.partial(annealed_chain, num_steps=10)"
        )
    return chain


def _missing(make: MakeChain) -> list[str]:
    """Required arguments of a builder besides the dimensions."""
    if not callable(make):
        raise TypeError(f"chain must be a name, a chain or a function that builds one, got {make!r}")
    parameters = inspect.signature(make).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = (p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in kinds)
    return [name for name in required if name not in ("dim", "context_dim")]
