"""Chains of guides: by name, by a builder, or made elsewhere and checked."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hmcvi.chain import Phase, Step, weigh
from hmcvi.density import Density, NormalDensity, standard_log_prob
from hmcvi.internal.checks import at_least, choose
from hmcvi.kernels import annealed_chain, hamiltonian_chain
from hmcvi.kernels.variational.mass import Mass

MakeChain = Callable[..., Step]  # (dim=…, context_dim=…) -> chain


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

    def make(
        self, builder: MakeChain, num: str, hmc: int, leapfrog: int, step: float, **own: Any
    ) -> MakeChain:
        """The builder with these settings, or the given ones in their place.  num: its name of num_hmc."""
        return functools.partial(
            builder,
            num_leapfrog=leapfrog if self.num_leapfrog is None else self.num_leapfrog,
            partial=self.partial,
            mass=self.mass,
            accept=self.accept,
            hidden=self.hidden,
            initial_step_size=step if self.initial_step_size is None else self.initial_step_size,
            reverse_sees=self.reverse_sees,
            **{num: hmc if self.num_hmc is None else self.num_hmc},
            **own,
        )


def _annealed(settings: ChainSettings, reverse: str | None = None) -> MakeChain:
    if settings.accept == "nn":
        raise ValueError("accept='nn' belongs to chain='hamiltonian'; an annealed chain may have 'simple'")
    return settings.make(annealed_chain, "num_steps", hmc=8, leapfrog=1, step=0.5, reverse=reverse)


def _hamiltonian(settings: ChainSettings) -> MakeChain:
    return settings.make(hamiltonian_chain, "num_hmc", hmc=3, leapfrog=4, step=0.2)


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


@torch.no_grad()
def check_chain(chain: Step, dim: int, context_dim: int, like: Tensor) -> None:
    """Refuse a chain that cannot move `dim` latents, by a trial on N(0, I).  like: their dtype and device."""
    position = like.new_zeros(1, dim)
    context = like.new_zeros(1, context_dim) if context_dim else None
    target = Density(standard_log_prob, base=NormalDensity())
    try:
        end = weigh(chain, Phase(position), standard_log_prob(position), target, context).transition
    except RuntimeError as error:
        raise _misfit(dim, context_dim) from error
    masses = (dict(part.named_parameters()) for part in chain.modules() if isinstance(part, Mass))
    sizes = [len(mass["log_scale"]) for mass in masses if "log_scale" in mass]  # 1 would be broadcast
    if end is None or end.state.position.shape != position.shape or any(size != dim for size in sizes):
        raise _misfit(dim, context_dim)


def _misfit(dim: int, context_dim: int) -> ValueError:
    return ValueError(
        f"the chain does not fit the model, whose latents fill {dim} dimensions: build it with dim={dim} and "
        f"context_dim={context_dim}, and in the dtype and on the device of the model"
    )
