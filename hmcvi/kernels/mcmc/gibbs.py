"""Gibbs updates: a kernel, or an exact draw, for each block of variables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.kernels.mcmc.compose import Composite, Part, merge, report_of, shared_density
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.kernels.mcmc.retarget import conditional, retarget

Block = str | int | slice | Sequence[int] | Tensor
Draw = Callable[[Tensor, torch.Generator | None], Tensor]


@dataclass(frozen=True, eq=False, init=False)
class Gibbs(Composite):
    """Update the blocks of z in turn, each by a kernel for γ as a function of that block alone.

    blocks: (block, kernel) pairs or {block: kernel}.  A block is the name of a variable of the density, a
    slice, an index or several; together they must cover every coordinate once.  Each kernel is written with
    the joint density and the dimension of its block: Gibbs runs it on `density.conditional`.  Persistent
    momenta do not outlive an update.  info as in `Compose`, with names of blocks as suffixes where they have
    names.  [Graham 2018, algorithm 3]

    >>> from hmcvi.kernels import HMC, LinearSlice
    >>> joint = Density(lambda v: -v["b"].square().sum(-1) - (v["a"] - v["b"].sum(-1)) ** 2,
    ...                 shapes={"a": (), "b": (2,)})
    >>> kernel = Gibbs({"a": LinearSlice(joint, width=1.0), "b": HMC(joint, 0.5, 3)})
    >>> state, info = kernel.step(kernel.init(torch.zeros(4, 3)))
    >>> [name for name in sorted(info) if name.startswith("accepted")]
    ['accepted_a', 'accepted_b']
    """

    kernels: tuple[Kernel, ...]
    blocks: tuple[slice | Tensor, ...]  # the coordinates of each kernel
    names: tuple[str | int, ...] = field(repr=False)
    _given: tuple[Block, ...] = field(repr=False)

    def __init__(self, blocks: Mapping[Any, Kernel] | Iterable[tuple[Block, Kernel]]) -> None:
        pairs = list(blocks.items() if isinstance(blocks, Mapping) else blocks)
        kernels = tuple(kernel for _, kernel in pairs)
        density = shared_density(kernels)
        if any(getattr(kernel, "compile", False) is True for kernel in kernels):
            raise ValueError(
                "a block has a new density at every step, which would be compiled anew: use compile=False"
            )
        settle = functools.partial(object.__setattr__, self)
        settle("kernels", kernels)
        settle("blocks", tuple(_indices(block, density) for block, _ in pairs))
        settle("names", tuple(block if isinstance(block, str) else i for i, (block, _) in enumerate(pairs)))
        settle("_given", tuple(block for block, _ in pairs))

    @property
    def density(self) -> Density:  # type: ignore[override]
        return self.kernels[0].density

    def init(self, position: Tensor) -> Phase:
        _check_cover(self.blocks, position.shape[-1])
        for kernel, block in zip(self.kernels, self.blocks, strict=True):
            self._on_block(kernel, block, position.detach()).init(position[..., block])
        state: Phase = super().init(position)
        return state

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        position, log_prob, reports = state.position, state.log_density(self.density), []
        for kernel, block in zip(self.kernels, self.blocks, strict=True):
            kernel = self._on_block(kernel, block, position)
            part, info = kernel.step(Phase(position[..., block], log_prob=log_prob), generator)
            position = position.clone()
            position[..., block] = part.position
            log_prob = part.log_density(kernel.density)
            reports.append(info)
        state = state._replace(position=position, log_prob=log_prob, grad=None)
        return state, merge(reports, self.names)

    def _on_block(self, kernel: Kernel, block: slice | Tensor, position: Tensor) -> Kernel:
        """The kernel that moves the coordinates `block`, the others fixed as in `position` [..., d]."""
        return conditional(kernel, self.density.conditional(position, block), position)

    def parts(self) -> list[Part]:
        return [self._part(block) for block in self.blocks]

    def _part(self, block: slice | Tensor) -> Part:
        return lambda kernel, state: (
            self._on_block(kernel, block, state.position),
            Phase(state.position[..., block]),
        )

    def reports(self, info: Info) -> list[Info]:
        return [report_of(info, name) for name in self.names]

    def with_kernels(self, kernels: Sequence[Kernel]) -> Self:
        return type(self)(zip(self._given, kernels, strict=True))


@retarget.register
def _(kernel: Gibbs, density: Density) -> Gibbs:
    return kernel.with_kernels([retarget(part, density) for part in kernel.kernels])


@dataclass(frozen=True, eq=False)
class ConditionalDraw(Kernel):
    """An exact draw: z' = draw(z, generator), from γ itself or, as a block of `Gibbs`, from its conditional.

    draw(position [..., d], generator) sees the joint position and returns new values of the block
    [..., block]; it is believed to be exact.  For variables whose conditional distribution is known, counts
    and labels stored as floating-point numbers among them.

    >>> def draw_shift(position, generator):  # a | b ~ N(b, 1)
    ...     return position[..., 1:] + torch.randn(position[..., :1].shape, generator=generator)
    >>> joint = Density(lambda z: -0.5 * (z[..., 0] - z[..., 1]) ** 2 - z[..., 1] ** 4)
    >>> from hmcvi.kernels import LinearSlice
    >>> kernel = Gibbs([(0, ConditionalDraw(joint, draw_shift)), (1, LinearSlice(joint, 1.0))])
    >>> kernel.step(kernel.init(torch.zeros(4, 2)))[0].position.shape
    torch.Size([4, 2])
    """

    density: Density
    draw: Draw

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        drawn, old = self.draw(state.position, generator), state.log_density(self.density)
        if (drawn.shape, drawn.dtype) != (state.position.shape, state.position.dtype):
            raise ValueError(
                f"draw must return new values of the block, {list(state.position.shape)} of "
                f"{state.position.dtype}, got {list(drawn.shape)} of {drawn.dtype}"
            )
        new = self.density.finite_log_prob(drawn)
        accepted = (old > -torch.inf) & (new > -torch.inf)
        state = state._replace(
            position=drawn.where(accepted[..., None], state.position),
            log_prob=new.where(accepted, old),
            grad=None,
        )
        return state, {
            "accepted": accepted,
            "num_evaluations": torch.ones_like(accepted, dtype=torch.int64),
        }


@conditional.register
def _(kernel: ConditionalDraw, density: Density, position: Tensor) -> ConditionalDraw:
    draw = kernel.draw
    return kernel.replace(density=density, draw=lambda _, generator: draw(position, generator))


def _indices(block: Block, density: Density) -> slice | Tensor:
    """What picks the block out of the last dimension of a position."""
    if isinstance(block, str):
        if density.layout is None:
            raise ValueError(
                f"block {block!r} is a name, but the density's variables have none: build it as "
                "Density(log_prob, shapes={name: shape}), or give indices"
            )
        if block not in density.layout.slices:
            raise ValueError(f"the density has the variables {list(density.layout.slices)}, not {block!r}")
        return density.layout.slices[block]
    if isinstance(block, slice):
        return block
    indices = torch.as_tensor([block] if isinstance(block, int) else block).cpu()
    return indices if indices.numel() > 0 else indices.long()


def _check_cover(blocks: Sequence[slice | Tensor], dim: int) -> None:
    """Every coordinate 0, …, d − 1 is in one block."""
    count = torch.zeros(dim, dtype=torch.int64)
    for block in blocks:
        try:
            if isinstance(block, slice) and (block.stop or 0) > dim:
                raise IndexError
            indices = torch.arange(dim)[block]
        except IndexError:
            raise ValueError(f"block {block} does not fit positions of {dim} dimensions") from None
        if indices.numel() == 0:
            raise ValueError(f"block {block} is empty")
        count += torch.bincount(indices, minlength=dim)
    if (count > 1).any():
        raise ValueError(f"coordinates {count.gt(1).nonzero()[:, 0].tolist()} are in more than one block")
    if (count == 0).any():
        raise ValueError(
            f"coordinates {count.eq(0).nonzero()[:, 0].tolist()} are in no block and would never move"
        )
