"""Integers embedded in the line, so that discontinuous Hamiltonian Monte Carlo can move them.

The integer n becomes the interval (a_n, a_{n+1}], its probability a density of constant height:

    log γ(z) = log p(n) − log(a_{n+1} − a_n)   where a_n < z ≤ a_{n+1}.   [Nishimura, Dunson & Lu 2020, §2.1]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hmcvi.density import Density, LogProb
from hmcvi.internal.layout import Layout


class Embedding(ABC):
    """n ∈ {low, …, high} ↔ (a_n, a_{n+1}], with a_low = 0.  high None: no upper bound.

    indexes: whether log_prob gets n as int64, to index with, or as a whole number of the position's dtype, so
    that lgamma and the like keep their precision.
    """

    indexes = False

    def __init__(self, low: int, high: int | None) -> None:
        if high is not None and high < low:
            raise ValueError(f"high must be at least low = {low}, got {high}")
        self.low, self.high = low, high

    @abstractmethod
    def edge(self, rank: Tensor) -> Tensor:
        """a_{low + rank}, of the dtype of `rank`."""

    @abstractmethod
    def rank(self, z: Tensor) -> Tensor:
        """n − low of the interval z lies in, as a whole number of the dtype of z; wrong outside the range."""

    @abstractmethod
    def log_size(self, rank: Tensor) -> Tensor:
        """log(a_{n+1} − a_n) at n = low + rank."""

    def discretize(self, z: Tensor) -> Tensor:
        """n with a_n < z ≤ a_{n+1}, the nearest in range for others.  int64, shape of z"""
        return self.low + self.rank(z).nan_to_num(0.0).clamp(0, self._top(z)).long()

    def log_width(self, z: Tensor) -> Tensor:
        """log(a_{n+1} − a_n), +inf where no interval contains z.  Shape of z"""
        rank = self.rank(z)
        inside = (rank >= 0) & (rank <= self._top(z))
        return self.log_size(rank.where(inside, 0.0)).where(inside, torch.inf)

    def _top(self, z: Tensor) -> float:
        """The greatest rank; without upper bound, the last that floating-point numbers tell from the next."""
        return 1 / torch.finfo(z.dtype).eps if self.high is None else self.high - self.low

    def embed(self, n: Tensor, share: Tensor | float = 0.5, dtype: torch.dtype | None = None) -> Tensor:
        """a_n + share · (a_{n+1} − a_n): the centre, or with share ~ U(0, 1) a random point of the interval.

        n: whole numbers.  The result has the given dtype, else that of share, else the default one.
        """
        outside = (n < self.low) | (n > (torch.inf if self.high is None else self.high)) | (n != n.round())
        if outside.any():
            high = "…" if self.high is None else f"…, {self.high}"
            raise ValueError(f"{n[outside][0].item()} is not one of the integers {self.low}, {high}")
        if dtype is None:
            dtype = share.dtype if isinstance(share, Tensor) else torch.get_default_dtype()
        rank = (n - self.low).to(dtype)
        return self.edge(rank) + share * self.log_size(rank).exp()


class Counts(Embedding):
    """low, low + 1, … on (0, ∞) with a_{low+k} = log(1 + k): a step in z is a change by a factor.

    >>> counts = Counts()
    >>> counts.discretize(counts.embed(torch.tensor([0, 1, 7, 1000]))).tolist()
    [0, 1, 7, 1000]
    >>> counts.log_width(torch.tensor([0.5, -0.5])).exp().tolist()
    [0.6931471824645996, inf]
    """

    def __init__(self, low: int = 0, high: int | None = None) -> None:
        super().__init__(low, high)

    def edge(self, rank: Tensor) -> Tensor:
        return rank.log1p()

    def rank(self, z: Tensor) -> Tensor:
        return z.expm1().ceil() - 1

    def log_size(self, rank: Tensor) -> Tensor:
        return (1 / (1 + rank)).log1p().log()


class Integers(Embedding):
    """low, …, high on (0, high − low + 1], a unit each.

    >>> Integers(-1, 1).discretize(torch.tensor([0.5, 1.0, 1.5, 3.0])).tolist()
    [-1, -1, 0, 1]
    """

    def __init__(self, low: int, high: int) -> None:
        super().__init__(low, high)

    def edge(self, rank: Tensor) -> Tensor:
        return rank

    def rank(self, z: Tensor) -> Tensor:
        return z.ceil() - 1

    def log_size(self, rank: Tensor) -> Tensor:
        return torch.zeros_like(rank)


class Categorical(Integers):
    """0, …, size − 1, a unit each; log_prob gets int64, to index tables with."""

    indexes = True

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        super().__init__(0, size - 1)


class EmbeddedLayout(Layout):
    """Named variables, some of them integers, as one flat vector: integers in, integers out."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], discrete: Mapping[str, Embedding]) -> None:
        super().__init__(shapes)
        unknown = [name for name in discrete if name not in self.shapes]
        if unknown:
            raise ValueError(f"there is no variable {unknown[0]!r}: name some of {list(self.shapes)}")
        self.discrete = dict(discrete)

    def unflatten(self, position: Tensor) -> dict[str, Tensor]:
        """[..., d] -> {name: [..., *shape]}, int64 where discrete."""
        variables = super().unflatten(position)
        return variables | {name: kind.discretize(variables[name]) for name, kind in self.discrete.items()}

    def flatten(self, variables: Mapping[str, Tensor]) -> Tensor:
        """{name: [..., *shape]} -> [..., d], integers at the centres of their intervals."""
        dtypes = [value.dtype for name, value in variables.items() if name not in self.discrete]
        dtype = dtypes[0] if dtypes else None
        return super().flatten(
            {
                name: self.discrete[name].embed(value, dtype=dtype) if name in self.discrete else value
                for name, value in variables.items()
            }
        )

    def log_widths(self, position: Tensor) -> Tensor:
        """log(a_{n+1} − a_n) of each integer, +inf where it is out of range, and 0 elsewhere.  [..., d]"""
        parts = []
        for name, block in self.slices.items():
            part = position[..., block]
            kind = self.discrete.get(name)
            parts.append(torch.zeros_like(part) if kind is None else kind.log_width(part))
        return torch.cat(parts, -1)


class EmbeddedDensity(Density):
    """A density of named variables, some of them integers, as one on R^d.

    log_prob(variables, *given) takes {name: [..., *shape]}: counts as whole numbers of the position's dtype,
    categories as int64.  shapes: {name: shape} of all variables, discrete: {name: embedding} of the integers;
    `discontinuous` is the mask [d] of the latter.  `layout.flatten` turns named variables with their integers
    into positions, `layout.unflatten` turns them back.

    >>> density = EmbeddedDensity(  # n ~ Poisson(e^x), x ~ N(0, 1)
    ...     lambda v: v["n"] * v["x"] - v["x"].exp() - (v["n"] + 1).lgamma() - 0.5 * v["x"].square(),
    ...     shapes={"x": (), "n": ()},
    ...     discrete={"n": Counts()},
    ... )
    >>> position = density.layout.flatten({"x": torch.zeros(4), "n": torch.tensor([0, 1, 5, 30])})
    >>> density.layout.unflatten(position)["n"].tolist(), density.discontinuous.tolist()
    ([0, 1, 5, 30], [False, True])
    """

    layout: EmbeddedLayout

    def __init__(
        self,
        log_prob: LogProb,
        *given: Tensor,
        shapes: Mapping[str, Sequence[int]],
        discrete: Mapping[str, Embedding],
        base: Density | None = None,
    ) -> None:
        if not discrete:
            raise ValueError("no variable is discrete: use Density(log_prob, shapes=...)")
        layout = EmbeddedLayout(shapes, discrete)

        def on_flat_vectors(position: Tensor, *given: Tensor) -> Tensor:
            return log_prob(self.variables(position), *given) - layout.log_widths(position).sum(-1)

        super().__init__(on_flat_vectors, *given, base=base)
        self.layout = layout
        self.discontinuous = torch.zeros(layout.dim, dtype=torch.bool)
        for name in discrete:
            self.discontinuous[layout.slices[name]] = True

    def variables(self, position: Tensor) -> dict[str, Tensor]:
        """{name: [..., *shape]} as log_prob takes them.  [..., d]"""
        variables = self.layout.unflatten(position)
        for name, kind in self.layout.discrete.items():
            if not kind.indexes:
                variables[name] = variables[name].to(position.dtype)
        return variables
