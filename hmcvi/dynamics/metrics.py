"""Metrics: the distribution N(0, M) of momenta and the kinetic energy it implies.

Each metric is given by a square factor M = L Lᵀ and owns all properties of the momentum.
They hold tensors, may differ from chain to chain (leading dimensions) and know nothing of x:
`hmcvi.kernels.variational.mass` has the learned models that produce them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import linear

from hmcvi.chain import Context
from hmcvi.internal.random import standard_normal

Drift = Callable[[Tensor, Tensor], Tensor]


class Metric(ABC):
    """A mass matrix M = L Lᵀ: v = L n with n ~ N(0, I).

    A metric is a frozen dataclass of tensors, which is how it is saved with the draws of a run.
    """

    @abstractmethod
    def color(self, vector: Tensor) -> Tensor:
        """L n  [..., d]"""

    @abstractmethod
    def whiten(self, vector: Tensor) -> Tensor:
        """L⁻¹ v  [..., d]"""

    @abstractmethod
    def whiten_transposed(self, vector: Tensor) -> Tensor:
        """L⁻ᵀ w  [..., d]"""

    @abstractmethod
    def log_det(self) -> Tensor:
        """log |det L| = ½ log |M|  [...]"""

    def velocity(self, momentum: Tensor) -> Tensor:
        """M⁻¹ v  [..., d]"""
        return self.whiten_transposed(self.whiten(momentum))

    def drift(self, time: Tensor) -> Drift:
        """(z, v) -> z + t M⁻¹ v, made once for many z and v [..., d].  t: [], [d] or [..., 1]"""
        return lambda position, momentum: torch.addcmul(position, time, self.velocity(momentum))

    def energy(self, momentum: Tensor) -> Tensor:
        """½ vᵀM⁻¹v  [...]"""
        return 0.5 * self.whiten(momentum).square().sum(-1)

    def log_prob(self, momentum: Tensor) -> Tensor:
        """log N(v; 0, M)  [...]"""
        constant = 0.5 * momentum.shape[-1] * math.log(2 * math.pi)
        return -self.energy(momentum) - self.log_det() - constant

    def sample(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """v ~ N(0, M), shaped like `like` [..., d]."""
        return self.color(standard_normal(like, generator))

    def check(self, position: Tensor) -> None:
        """Refuse positions [..., d] of another dimension, dtype or device than the metric."""
        try:
            colored = self.color(position)
            fits = (colored.shape, colored.dtype) == (position.shape, position.dtype)
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"the metric does not fit positions {list(position.shape)} of {position.dtype} on "
                f"{position.device}: give both the same dimension, dtype and device"
            )

    def __call__(self, context: Context | None = None) -> Metric:
        """The metric itself: a fixed metric is a constant mass model."""
        return self


@dataclass(frozen=True, eq=False)
class IdentityMetric(Metric):
    """M = I."""

    def color(self, vector: Tensor) -> Tensor:
        return vector

    whiten = whiten_transposed = color

    def log_det(self) -> Tensor:
        return torch.zeros(())


@dataclass(frozen=True, eq=False)
class DiagonalMetric(Metric):
    """M = diag(exp(2 s)), s: [..., d]."""

    log_scale: Tensor
    _scale: Tensor = field(init=False, repr=False)
    _inverse_scale: Tensor = field(init=False, repr=False)
    _inverse_mass: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        inverse_scale = (-self.log_scale).exp()
        object.__setattr__(self, "_scale", self.log_scale.exp())
        object.__setattr__(self, "_inverse_scale", inverse_scale)
        object.__setattr__(self, "_inverse_mass", inverse_scale.square())

    def color(self, vector: Tensor) -> Tensor:
        return vector * self._scale

    def whiten(self, vector: Tensor) -> Tensor:
        return vector * self._inverse_scale

    whiten_transposed = whiten

    def velocity(self, momentum: Tensor) -> Tensor:
        return momentum * self._inverse_mass

    def drift(self, time: Tensor) -> Drift:
        factor = time * self._inverse_mass
        return lambda position, momentum: torch.addcmul(position, factor, momentum)

    def log_det(self) -> Tensor:
        return self.log_scale.sum(-1)


@dataclass(frozen=True, eq=False)
class LowRankMetric(Metric):
    """M = D^½ (I + V Vᵀ)² D^½: diagonal plus positive low rank, with a known root.

    D = diag(exp(2 s)), s: [..., d]; V: [..., d, r].
    (I + VVᵀ)⁻¹ = I − V C⁻¹ Vᵀ and |I + VVᵀ| = |C| with C = I + VᵀV [..., r, r].
    """

    log_scale: Tensor
    factor: Tensor
    diagonal: DiagonalMetric = field(init=False, repr=False)
    _core_root: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        factor = self.factor
        core = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device) + factor.mT @ factor
        object.__setattr__(self, "diagonal", DiagonalMetric(self.log_scale))
        object.__setattr__(self, "_core_root", torch.linalg.cholesky(core))

    def _project(self, vector: Tensor) -> Tensor:
        return (self.factor.mT @ vector[..., None])[..., 0]

    def _expand(self, coordinates: Tensor) -> Tensor:
        return (self.factor @ coordinates[..., None])[..., 0]

    def _deflate(self, vector: Tensor) -> Tensor:
        solved = torch.cholesky_solve(self._project(vector)[..., None], self._core_root)[..., 0]
        return vector - self._expand(solved)

    def color(self, vector: Tensor) -> Tensor:
        return self.diagonal.color(vector + self._expand(self._project(vector)))

    def whiten(self, vector: Tensor) -> Tensor:
        return self._deflate(self.diagonal.whiten(vector))

    def whiten_transposed(self, vector: Tensor) -> Tensor:
        return self.diagonal.whiten(self._deflate(vector))

    def log_det(self) -> Tensor:
        return self.diagonal.log_det() + 2 * self._core_root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@dataclass(frozen=True, eq=False)
class SpectralMetric(Metric):
    """M = D^½ (I + Q (Λ² − I) Qᵀ) D^½: diagonal but for a few orthonormal directions, stiffer or softer.

    D = diag(exp(2 s)), s: [..., d]; Q: [..., d, r] with QᵀQ = I; Λ = diag(exp(λ)), λ: [..., r].
    The root I + Q (Λ − I) Qᵀ is symmetric, and its inverse has 1/Λ in place of Λ.
    """

    log_scale: Tensor
    vectors: Tensor
    log_values: Tensor
    diagonal: DiagonalMetric = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "diagonal", DiagonalMetric(self.log_scale))

    def _scaled(self, vector: Tensor, power: float) -> Tensor:
        """(I + Q (Λ^power − I) Qᵀ) v"""
        factor = (power * self.log_values).expm1()
        if self.vectors.ndim == 2:
            return vector + ((vector @ self.vectors) * factor) @ self.vectors.mT
        along = (self.vectors.mT @ vector[..., None])[..., 0] * factor
        return vector + (self.vectors @ along[..., None])[..., 0]

    def color(self, vector: Tensor) -> Tensor:
        return self.diagonal.color(self._scaled(vector, 1.0))

    def whiten(self, vector: Tensor) -> Tensor:
        return self._scaled(self.diagonal.whiten(vector), -1.0)

    def whiten_transposed(self, vector: Tensor) -> Tensor:
        return self.diagonal.whiten(self._scaled(vector, -1.0))

    def velocity(self, momentum: Tensor) -> Tensor:
        return self.diagonal.whiten(self._scaled(self.diagonal.whiten(momentum), -2.0))

    def log_det(self) -> Tensor:
        return self.diagonal.log_det() + self.log_values.sum(-1)


@dataclass(frozen=True, eq=False)
class CholeskyMetric(Metric):
    """M = L Lᵀ, L: [..., d, d] lower triangular with positive diagonal.

    One factor for all chains is inverted once: products cost less than triangular solves.
    """

    root: Tensor
    _inverse_root: Tensor | None = field(init=False, repr=False)
    _inverse_mass: Tensor | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        inverse = None
        if self.root.ndim == 2:
            identity = torch.eye(len(self.root), dtype=self.root.dtype, device=self.root.device)
            inverse = torch.linalg.solve_triangular(self.root, identity, upper=False)
        object.__setattr__(self, "_inverse_root", inverse)
        object.__setattr__(self, "_inverse_mass", None if inverse is None else inverse.mT @ inverse)

    def color(self, vector: Tensor) -> Tensor:
        return _product(self.root, vector)

    def whiten(self, vector: Tensor) -> Tensor:
        if self._inverse_root is not None:
            return _product(self._inverse_root, vector)
        return torch.linalg.solve_triangular(self.root, vector[..., None], upper=False)[..., 0]

    def whiten_transposed(self, vector: Tensor) -> Tensor:
        if self._inverse_root is not None:
            return vector @ self._inverse_root
        return torch.linalg.solve_triangular(self.root.mT, vector[..., None], upper=True)[..., 0]

    def velocity(self, momentum: Tensor) -> Tensor:
        if self._inverse_mass is not None:
            return _product(self._inverse_mass, momentum)
        return super().velocity(momentum)

    def drift(self, time: Tensor) -> Drift:
        if self._inverse_mass is None or time.ndim > 1:
            return super().drift(time)
        matrix = time * self._inverse_mass  # a row vector v becomes v M⁻¹ diag(t)
        return lambda position, momentum: (
            torch.addmm(position, momentum, matrix) if position.ndim == 2 else position + momentum @ matrix
        )

    def log_det(self) -> Tensor:
        return self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    """A v, of one matrix [d, d] for all vectors [..., d], or one each."""
    return linear(vector, matrix) if matrix.ndim == 2 else (matrix @ vector[..., None])[..., 0]
