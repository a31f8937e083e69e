"""Chains spread over processes: each moves its own, with the random numbers that one process would draw.

During warm-up the processes exchange their chains after every transition, so that all of them learn the same
from all chains; afterwards, only the draws to be kept.  Of kernels other than HMC, whose random numbers may
depend on the chains, every process moves all chains, and each evaluates log γ for its share of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.internal.processes import Processes
from hmcvi.internal.settings import fingerprint
from hmcvi.internal.trees import map_tensors
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.kernels.mcmc.retarget import retarget
from hmcvi.kernels.mcmc.transitions import RandomNumbers
from hmcvi.sampling.record import same_values
from hmcvi.sampling.rows import ByProcesses, takes_fewer


@dataclass(frozen=True, eq=False)
class Share:
    """The chains of this process, rows of `total`, and their density."""

    group: Processes
    total: int
    density: Density

    @property
    def rows(self) -> slice:
        return slice(*self.group.share(self.total))

    def of(self, state: Phase) -> Phase:
        """The state of these chains alone."""
        own: Phase = map_tensors(lambda part: part[self.rows], state)
        return own

    def gathered(self, state: Phase, others: Iterable[Tensor]) -> tuple[Phase, list[Tensor]]:
        """The state of all chains, and other tensors of all, [own chains, ...] -> [chains, ...]."""
        known = {name: part for name, part in state._asdict().items() if part is not None}
        found = self.group.gather_rows([*known.values(), *others], self.total)
        return Phase(**dict(zip(known, found, strict=False))), found[len(known) :]


@dataclass(frozen=True, eq=False)
class _OwnRows(HMC):
    """HMC of the chains of one process: it draws the random numbers of all, and uses its own."""

    _: KW_ONLY
    share: Share = None  # type: ignore[assignment]

    def _whole(self, start: Phase) -> Phase:
        """As many chains as there are in all, to draw numbers for."""
        assert start.log_prob is not None
        like, total = start.position, self.share.total
        empty = like.new_empty(())
        return Phase(empty.expand(total, like.shape[-1]), log_prob=empty.expand(total))

    def _own(self, numbers: RandomNumbers) -> RandomNumbers:
        rows = self.share.rows
        normal, uniform = numbers.normal[..., rows, :], numbers.uniform[..., rows]
        return numbers._replace(normal=normal.contiguous(), uniform=uniform.contiguous())

    def _draw(self, start: Phase, kept: Tensor | None, generator: torch.Generator | None) -> RandomNumbers:
        return self._own(super()._draw(self._whole(start), kept, generator))

    def _draw_several(
        self, start: Phase, kept: Tensor | None, generator: torch.Generator | None, count: int
    ) -> RandomNumbers:
        return self._own(super()._draw_several(self._whole(start), kept, generator, count))

    def _settings(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        step_size, beta = super()._settings(like)
        one_each = step_size.ndim > 1 and len(step_size) == self.share.total
        return step_size[self.share.rows] if one_each else step_size, beta


@dataclass(frozen=True, eq=False)
class _Gathered(HMC):
    """HMC of all chains as warm-up sees it, each process moving its own."""

    _: KW_ONLY
    share: Share = None  # type: ignore[assignment]

    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        own, info = own_kernel(self, self.share).step(self.share.of(state), generator)
        new, values = self.share.gathered(own, info.values())
        return new, dict(zip(info, values, strict=True))


def spread(kernel: Kernel, position: Tensor, group: Processes) -> Kernel:
    """The kernel for warm-up by all processes, and for draws if it is not HMC.  position: [chains, d]"""
    if group.size == 1:
        return kernel
    if len(position) < group.size:
        raise ValueError(f"{group.size} processes for {len(position)} chains: each needs one at least")
    if type(kernel) is HMC:
        if kernel.metric.log_det().ndim:
            raise ValueError("chains with a metric each cannot be spread over processes: give them one")
        share = Share(group, len(position), _density_of_own(kernel.density, position, group))
        return _Gathered(**_fields(kernel), share=share)
    found: Kernel | None = None
    with suppress(AttributeError, TypeError, ValueError):
        found = retarget(kernel, ByProcesses(kernel.density, group))
    if found is None:
        raise ValueError(f"{type(kernel).__name__} cannot be spread over processes: run it without torchrun")
    return found


def as_one(kernel: Kernel) -> Kernel:
    """The kernel as a single process has it."""
    if isinstance(kernel, _Gathered):
        return HMC(**_fields(kernel))
    density = kernel.density
    return retarget(kernel, density.target) if isinstance(density, ByProcesses) else kernel


def own_kernel(kernel: HMC, share: Share) -> HMC:
    """HMC of the chains of this process."""
    return _OwnRows(**{**_fields(kernel), "density": share.density}, share=share)


def share_of(kernel: Kernel) -> Share | None:
    """How chains of a kernel made by `spread` are shared; None where each process moves all."""
    return kernel.share if isinstance(kernel, _Gathered) else None


def check_same_call(start: Any, num_samples: int, group: Processes) -> None:
    """Refuse to spread chains over processes that want other ones."""
    if group.size == 1:
        return
    calls = group.gather(fingerprint(*vars(start).values(), num_samples))
    if (other := next((rank for rank, call in enumerate(calls) if call != calls[0]), None)) is not None:
        raise ValueError(
            f"process {other} of {group.size} asks for other draws than the first one: all must call "
            "hmcvi.sample alike, with the same kernel, init, numbers of draws and seed, because torchrun's "
            "processes share its chains"
        )


@torch.no_grad()
def _density_of_own(density: Density, position: Tensor, group: Processes) -> Density:
    """The density of the chains of this process, which must have the values that it has among all."""
    rows, total = slice(*group.share(len(position))), len(position)
    own = density if takes_fewer(density, position[rows]) else density.of_rows(rows, total)
    same = takes_fewer(own, position[rows]) and same_values(
        density.finite_log_prob(position)[rows], own.finite_log_prob(position[rows])
    )
    if not same:
        raise ValueError(
            "log_prob of some chains alone is not what it is among all, so that they cannot be spread over "
            "processes: give tensors with one row per chain as Density(log_prob, x)"
        )
    return own


def _fields(kernel: HMC) -> dict[str, Any]:
    return {field.name: getattr(kernel, field.name) for field in dataclasses.fields(HMC) if field.init}
