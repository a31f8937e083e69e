"""Densities that know which of their factors a coordinate is in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.kernels.mcmc.embedding import EmbeddedDensity

Local = Callable[[Any, Tensor], Tensor]
Group = str | Sequence[int] | Tensor


class FactoredDensity(Density):
    """γ(z) = Π_f f(z), for kernels that move few coordinates at a time: what does not change is not computed.

    density: γ itself.
    local(z, index): the sum of log f over the factors that z_i is in, for the coordinates i of
        `index` [..., n], one or several for each chain -> [..., n].  Only differences count, so other factors
        may be left in.  z is what log_prob takes: a vector [..., d], or the named variables.
    independent: sets of coordinates, each conditionally independent of the rest of its set given all others:
        lists of indices, or names of variables.  No factor has two of a set, and a set moves at once, at the
        cost of one evaluation of `local`.  Coordinates in no set move alone.

    `DiscontinuousHMC` crosses jumps by `local` and accepts by log γ.  It keeps γ even if `local` is wrong, as
    long as independent coordinates are, which it tries; it then merely accepts less.

    >>> coupling = 0.4  # a chain of spins x_i = ±1: a coordinate is coupled to its two neighbours alone
    >>> def log_prob(z):
    ...     spins = z.sign()
    ...     return coupling * (spins[..., 1:] * spins[..., :-1]).sum(-1) - 0.5 * z.square().sum(-1)
    >>> def local(z, index):
    ...     around = torch.nn.functional.pad(z.sign(), (1, 1))
    ...     terms = coupling * z.sign() * (around[..., :-2] + around[..., 2:]) - 0.5 * z.square()
    ...     return terms.gather(-1, index)
    >>> chain = FactoredDensity(Density(log_prob), local, independent=[range(0, 100, 2), range(1, 100, 2)])
    >>> from hmcvi.kernels import DiscontinuousHMC
    >>> kernel = DiscontinuousHMC(chain, [True] * 100, step_size=0.5, num_steps=4)
    >>> state, info = kernel.step(kernel.init(torch.ones(3, 100)))
    >>> info["num_evaluations"].tolist(), info["num_local_evaluations"].tolist()  # for 400 coordinate updates
    ([1, 1, 1], [16, 16, 16])
    """

    def __init__(self, density: Density, local: Local, independent: Sequence[Group] = ()) -> None:
        super().__init__(density._log_prob, base=density.base, dim=density.dim)
        self.layout = density.layout
        self.target, self.local, self.independent = density, local, tuple(independent)

    def _log_prob(self, position: Tensor) -> Tensor:
        return self.target._log_prob(position)

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        return self.target.value_and_grad(position)

    def parameters(self, position: Tensor) -> list[Tensor]:
        return self.target.parameters(position)

    def local_log_prob(self, position: Tensor, index: Tensor) -> Tensor:
        """Σ log f over the factors of z_i, and of the width of its interval where it stands for an integer.

        position: [..., d]; index, result: [..., n]
        """
        if not isinstance(self.target, EmbeddedDensity):
            given = position if self.layout is None else self.layout.unflatten(position)
            return self.local(given, index)
        widths = self.target.layout.log_widths(position).gather(-1, index)
        return self.local(self.target.variables(position), index) - widths

    def groups(self, moved: Tensor) -> Tensor:
        """The coordinates of the mask `moved` [d] as sets that move at once, filled up by −1.  [groups, n]"""
        indices = moved.nonzero()[:, 0].tolist()
        sets = [self._indices(group) for group in self.independent]
        named = [index for group in sets for index in group]
        if unknown := sorted(set(named) - set(indices)):
            raise ValueError(
                f"coordinates {unknown} are said to be independent of others, but are not discontinuous"
            )
        if len(named) > len(set(named)):
            raise ValueError("a coordinate is in more than one set of independent coordinates")
        sets += [[index] for index in indices if index not in set(named)]
        table = torch.full((len(sets), max(map(len, sets))), -1, device=moved.device)
        for row, group in zip(table, sets, strict=True):
            row[: len(group)] = torch.tensor(group, device=moved.device)
        return table

    def _indices(self, group: Group) -> list[int]:
        if not isinstance(group, str):
            indices = [int(index) for index in group]
        elif self.layout is None or group not in self.layout.slices:
            raise ValueError(f"the density has no variable {group!r}: give indices of coordinates")
        else:
            block = self.layout.slices[group]
            indices = [*range(block.start, block.stop)]
        if not indices or min(indices) < 0:
            raise ValueError(f"independent coordinates are indices 0, …, d − 1, got {indices}")
        return indices

    def check_local(self, position: Tensor, groups: Tensor, lengths: Tensor) -> None:
        """Refuse a `local` of the wrong shape, or sets whose coordinates see each other move by `lengths`.

        Of any two members of a set one moves while the other does not in one of log₂ n trials.
        """
        for group in groups:
            index = group[group >= 0].expand(*position.shape[:-1], -1)
            before = self.local_log_prob(position, index)
            if before.shape != index.shape or before.dtype != position.dtype:
                raise ValueError(
                    f"local must return {list(index.shape)} numbers of {position.dtype} for coordinates of "
                    f"that shape, got {list(before.shape)} of {before.dtype}"
                )
            count = index.shape[-1]
            for bit in range((count - 1).bit_length()):
                moves = torch.arange(count, device=index.device) >> bit & 1 > 0
                moved = position.scatter_add(-1, index, lengths.expand_as(position).gather(-1, index) * moves)
                after = self.local_log_prob(moved, index)
                near = torch.isclose(after, before, rtol=torch.finfo(before.dtype).eps ** 0.5, equal_nan=True)
                if not (near | moves).all():
                    raise ValueError(
                        f"coordinates {index.flatten(0, -2)[0].tolist()} are not conditionally independent: "
                        "some of them change the factors of others"
                    )
