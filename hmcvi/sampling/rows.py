"""Densities evaluated for some chains at a time: in batches, or by several processes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.internal.checks import whole
from hmcvi.internal.processes import Processes
from hmcvi.internal.tracing import is_tracing

Of = Callable[[slice, int], Density]  # the density of these rows, of so many


def in_batches(density: Density, num_chains: int) -> Density:
    """The same density, evaluated for at most `num_chains` chains at a time.

    For chains whose log_prob needs more memory than there is: kernels, random numbers and draws are those of
    all chains at once, up to rounding.

    >>> normal = Density(lambda z: -0.5 * z.square().sum(-1), dim=2)
    >>> in_batches(normal, 4).value_and_grad(torch.ones(10, 2))[1].shape
    torch.Size([10, 2])
    """
    return _InBatches(density, whole("num_chains", num_chains, 1))


class ByRows(Density):
    """log γ(z), z: [chains, d], evaluated row by row; with more leading dimensions, along the first."""

    def __init__(self, target: Density, of: Of | None = None) -> None:
        super().__init__(target._log_prob, base=target.base, dim=target.dim)
        self.layout, self.target = target.layout, target
        self._of, self._has_own_rows = of, None if of is None else True

    @abstractmethod
    def _like(self, target: Density, of: Of | None = None) -> ByRows:
        """Another density, evaluated likewise."""

    @abstractmethod
    def _slices(self, total: int) -> list[slice]:
        """The rows to evaluate here."""

    @abstractmethod
    def _joined(self, parts: Sequence[tuple[Tensor, ...]], total: int) -> list[Tensor]:
        """Values of all rows, of those of the slices."""

    def _parts(self, position: Tensor) -> Iterator[tuple[Density, Tensor]]:
        for rows in self._slices(len(position)):
            yield self._at(rows, position), position[rows]

    def _at(self, rows: slice, position: Tensor) -> Density:
        """The density of these rows."""
        total = len(position)
        if self._of is not None:
            return self._of(rows, total)
        if len(position[rows]) == total:
            return self.target
        if self._has_own_rows is None and not is_tracing():
            self._has_own_rows = not takes_fewer(self.target, position[rows])
        return self.target.of_rows(rows, total) if self._has_own_rows else self.target

    def _log_prob(self, position: Tensor) -> Tensor:
        parts = [(density._log_prob(part),) for density, part in self._parts(position)]
        return self._joined(parts, len(position))[0]

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        parts = [density.value_and_grad(part) for density, part in self._parts(position)]
        value, grad = self._joined(parts, len(position))
        return value, grad

    def check(self, position: Tensor, differentiable: bool = True) -> None:
        for density, part in self._parts(position):
            density.check(part, differentiable)

    def of_rows(self, rows: slice, total: int) -> Density:
        return self._like(self.target.of_rows(rows, total))

    def conditional(self, position: Tensor, block: slice | Tensor) -> Density:
        whole = self.target.conditional(position, block)
        return self._like(whole, lambda rows, _: self._at(rows, position).conditional(position[rows], block))

    def with_base(self, base: Density) -> Density:
        return self._like(self.target.with_base(base))

    def __getattr__(self, name: str) -> object:
        """What else the density knows, such as the sites of a Pyro model."""
        if name.startswith("_") or name == "target":
            raise AttributeError(name)
        return getattr(self.target, name)


class _InBatches(ByRows):
    def __init__(self, target: Density, most: int, of: Of | None = None) -> None:
        super().__init__(target, of)
        self._most = most

    def _like(self, target: Density, of: Of | None = None) -> ByRows:
        return _InBatches(target, self._most, of)

    def _slices(self, total: int) -> list[slice]:
        return [slice(start, min(start + self._most, total)) for start in range(0, total, self._most)]

    def _joined(self, parts: Sequence[tuple[Tensor, ...]], total: int) -> list[Tensor]:
        return [torch.cat(values) for values in zip(*parts, strict=True)]


class ByProcesses(ByRows):
    """Each process evaluates its share of the rows, and has the values of all."""

    def __init__(self, target: Density, group: Processes, of: Of | None = None) -> None:
        super().__init__(target, of)
        self._group = group

    def _like(self, target: Density, of: Of | None = None) -> ByRows:
        return ByProcesses(target, self._group, of)

    def _slices(self, total: int) -> list[slice]:
        shared = total >= self._group.size  # a few rows are evaluated by all
        return [slice(*self._group.share(total))] if shared else [slice(0, total)]

    def _joined(self, parts: Sequence[tuple[Tensor, ...]], total: int) -> list[Tensor]:
        own = parts[0]
        return self._group.gather_rows(own, total) if total >= self._group.size else list(own)


@torch.no_grad()
def takes_fewer(density: Density, position: Tensor) -> bool:
    """Whether log γ can be evaluated at fewer positions than there are chains, as it is."""
    try:
        return density._log_prob(position).shape == position.shape[:-1]
    except (RuntimeError, ValueError, IndexError):  # such as a sum of tensors of other lengths
        return False
