"""The Jacobian J [N, M] of a constraint c(u) = 0 at a point, its Gram matrix J Jᵀ and their linear algebra.

Each form stores what its structure needs of J, for all chains at once.  A chain whose J has not full rank
gets NaN, and the kernel rejects it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self

import torch
from torch import Tensor


class Linearization(ABC):
    """J at one point per chain, all its attributes tensors [..., ·]."""

    NAMES: ClassVar[tuple[str, ...]]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that it stores."""
        return tuple(getattr(self, name) for name in self.NAMES)

    @classmethod
    def of(cls, *tensors: Tensor) -> Self:
        """The form that stores these."""
        new = cls.__new__(cls)
        vars(new).update(zip(cls.NAMES, tensors, strict=True))
        return new

    def detach(self) -> Self:
        """The same J, detached from the graph of its derivatives."""
        return self._mapped(lambda tensor: tensor.detach())

    def select(self, rows: Tensor) -> Self:
        """J of some of the chains."""
        return self._mapped(lambda tensor: tensor[rows])

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        return self.of(*map(change, self.tensors))

    @abstractmethod
    def apply(self, vector: Tensor) -> Tensor:
        """J v  [..., M] -> [..., N]"""

    @abstractmethod
    def transpose(self, vector: Tensor) -> Tensor:
        """Jᵀ λ  [..., N] -> [..., M]"""

    @abstractmethod
    def solve(self, vector: Tensor) -> Tensor:
        """(J Jᵀ)⁻¹ b  [..., N] -> [..., N]"""

    @abstractmethod
    def log_volume(self) -> Tensor:
        """½ log |J Jᵀ|  [...]"""

    @abstractmethod
    def volume_gradient(self) -> tuple[Tensor, ...]:
        """∂(½ log |J Jᵀ|)/∂J = (J Jᵀ)⁻¹ J, for each of the tensors that the form is made of."""

    def lift(self, vector: Tensor) -> Tensor:
        """Jᵀ (J Jᵀ)⁻¹ b: the shortest step that changes c by b.  [..., N] -> [..., M]"""
        return self.transpose(self.solve(vector))

    def project(self, vector: Tensor) -> Tensor:
        """v − Jᵀ (J Jᵀ)⁻¹ J v: the part of v along the manifold.  [..., M]"""
        return vector - self.lift(self.apply(vector))

    @abstractmethod
    def solve_between(self, other: Linearization, vector: Tensor) -> Tensor:
        """(J' Jᵀ)⁻¹ b with J' of `other`, for Newton's method along the rows of J.  [..., N]"""

    @abstractmethod
    def step_within(self, subspace: Tensor, vector: Tensor) -> Tensor:
        """P (J P)⁻¹ b: the step within the span of P = `subspace` [..., M, N] that changes c by b.  [..., M]

        Structured forms take the span of the last N inputs instead.
        """

    @abstractmethod
    def log_volume_within(self, subspace: Tensor) -> Tensor:
        """log |det J P|, P as for `step_within`.  [...]"""


class Dense(Linearization):
    """J [..., N, M] without known structure."""

    NAMES = "jacobian", "_root"

    def __init__(self, jacobian: Tensor) -> None:
        self.jacobian = jacobian
        self._root = cholesky(jacobian @ jacobian.mT)

    def apply(self, vector: Tensor) -> Tensor:
        return _multiply(self.jacobian, vector)

    def transpose(self, vector: Tensor) -> Tensor:
        return _multiply(self.jacobian.mT, vector)

    def solve(self, vector: Tensor) -> Tensor:
        return torch.cholesky_solve(vector[..., None], self._root)[..., 0]

    def log_volume(self) -> Tensor:
        return _log_diagonal(self._root)

    def volume_gradient(self) -> tuple[Tensor, ...]:
        return (torch.cholesky_solve(self.jacobian, self._root),)

    def solve_between(self, other: Linearization, vector: Tensor) -> Tensor:
        assert isinstance(other, Dense)
        return _solve(other.jacobian @ self.jacobian.mT, vector)

    def step_within(self, subspace: Tensor, vector: Tensor) -> Tensor:
        return _multiply(subspace, _solve(self.jacobian @ subspace, vector))

    def log_volume_within(self, subspace: Tensor) -> Tensor:
        return torch.linalg.slogdet(self.jacobian @ subspace)[1]


class Elementwise(Linearization):
    """J = [C, diag(d)], each output with an input of its own.  C: [..., N, G], d: [..., N], inputs (u₁, u₂).

    With W = D⁻¹C, S = I + WᵀW = L Lᵀ and A = L⁻¹Wᵀ,
    (D² + C Cᵀ)⁻¹ = D⁻¹ (I − AᵀA) D⁻¹,   |D² + C Cᵀ| = |D|² |S|.
    """

    NAMES = "columns", "diagonal", "_root", "_inverse", "_whitened"

    def __init__(self, columns: Tensor, diagonal: Tensor) -> None:
        self.columns, self.diagonal = columns, diagonal
        scaled, eye = columns / diagonal[..., None], _eye(columns)
        self._root = cholesky(eye + scaled.mT @ scaled)
        self._inverse = torch.linalg.solve_triangular(self._root, eye.expand_as(self._root), upper=False)
        self._whitened = self._inverse @ scaled.mT

    def apply(self, vector: Tensor) -> Tensor:
        size = self.columns.shape[-1]
        return _multiply(self.columns, vector[..., :size]) + self.diagonal * vector[..., size:]

    def transpose(self, vector: Tensor) -> Tensor:
        return torch.cat([_multiply(self.columns.mT, vector), self.diagonal * vector], -1)

    def solve(self, vector: Tensor) -> Tensor:
        scaled = vector / self.diagonal
        inner = _multiply(self._whitened, scaled)
        return (scaled - _multiply(self._whitened.mT, inner)) / self.diagonal

    def lift(self, vector: Tensor) -> Tensor:
        """(L⁻ᵀa, w − Aᵀa) with w = D⁻¹b and a = A w"""
        scaled = vector / self.diagonal
        inner = _multiply(self._whitened, scaled)
        rest = scaled - _multiply(self._whitened.mT, inner)
        return torch.cat([_multiply(self._inverse.mT, inner), rest], -1)

    def log_volume(self) -> Tensor:
        return self.diagonal.abs().log().sum(-1) + _log_diagonal(self._root)

    def volume_gradient(self) -> tuple[Tensor, ...]:
        """D⁻¹ Aᵀ L⁻¹ and (1 − diag(AᵀA)) / d"""
        columns = (self._whitened.mT @ self._inverse) / self.diagonal[..., None]
        return columns, (1 - self._whitened.square().sum(-2)) / self.diagonal

    def solve_between(self, other: Linearization, vector: Tensor) -> Tensor:
        assert isinstance(other, Elementwise)
        product = self.diagonal * other.diagonal
        left = other.columns / product[..., None]
        small = _eye(self.columns) + self.columns.mT @ left
        scaled = vector / product
        return scaled - _multiply(left, _solve(small, _multiply(self.columns.mT, scaled)))

    def step_within(self, subspace: Tensor, vector: Tensor) -> Tensor:
        return _local(self.columns, vector / self.diagonal)

    def log_volume_within(self, subspace: Tensor) -> Tensor:
        return self.diagonal.abs().log().sum(-1)


class Triangular(Linearization):
    """J = [C, T], T lower triangular, as outputs follow one another.  C: [..., N, G], T: [..., N, N].

    With W = T⁻¹C,  (T Tᵀ + C Cᵀ)⁻¹ = T⁻ᵀ (I − W S⁻¹ Wᵀ) T⁻¹,  |T Tᵀ + C Cᵀ| = |T|² |S|,  S = I + WᵀW.
    """

    NAMES = "columns", "triangle", "_whitened", "_root"

    def __init__(self, columns: Tensor, triangle: Tensor) -> None:
        self.columns, self.triangle = columns, triangle
        self._whitened = torch.linalg.solve_triangular(triangle, columns, upper=False)
        self._root = cholesky(_eye(columns) + self._whitened.mT @ self._whitened)

    def apply(self, vector: Tensor) -> Tensor:
        size = self.columns.shape[-1]
        return _multiply(self.columns, vector[..., :size]) + _multiply(self.triangle, vector[..., size:])

    def transpose(self, vector: Tensor) -> Tensor:
        return torch.cat([_multiply(self.columns.mT, vector), _multiply(self.triangle.mT, vector)], -1)

    def solve(self, vector: Tensor) -> Tensor:
        return self._solved(vector[..., None])[..., 0]

    def _solved(self, matrix: Tensor) -> Tensor:
        """(J Jᵀ)⁻¹ B  [..., N, k] -> [..., N, k]"""
        white = torch.linalg.solve_triangular(self.triangle, matrix, upper=False)
        white = white - self._whitened @ torch.cholesky_solve(self._whitened.mT @ white, self._root)
        return torch.linalg.solve_triangular(self.triangle.mT, white, upper=True)

    def log_volume(self) -> Tensor:
        return _log_diagonal(self.triangle) + _log_diagonal(self._root)

    def volume_gradient(self) -> tuple[Tensor, ...]:
        return self._solved(self.columns), self._solved(self.triangle)

    def solve_between(self, other: Linearization, vector: Tensor) -> Tensor:
        assert isinstance(other, Triangular)
        white = torch.linalg.solve_triangular(other.triangle, vector[..., None], upper=False)
        small = _eye(self.columns) + self._whitened.mT @ other._whitened
        white = white - other._whitened @ torch.linalg.solve_ex(small, self._whitened.mT @ white)[0]
        return torch.linalg.solve_triangular(self.triangle.mT, white, upper=True)[..., 0]

    def step_within(self, subspace: Tensor, vector: Tensor) -> Tensor:
        step = torch.linalg.solve_triangular(self.triangle, vector[..., None], upper=False)[..., 0]
        return _local(self.columns, step)

    def log_volume_within(self, subspace: Tensor) -> Tensor:
        return _log_diagonal(self.triangle)


def cholesky(matrix: Tensor) -> Tensor:
    """The lower triangular factor, NaN for matrices that are not positive definite.  [..., n, n]"""
    root, failed = torch.linalg.cholesky_ex(matrix)
    return root.where((failed == 0)[..., None, None], torch.nan)


def _eye(columns: Tensor) -> Tensor:
    return torch.eye(columns.shape[-1], dtype=columns.dtype, device=columns.device)


def _local(columns: Tensor, step: Tensor) -> Tensor:
    """A step of the last inputs alone.  [..., N] -> [..., M]"""
    return torch.cat([step.new_zeros(*step.shape[:-1], columns.shape[-1]), step], -1)


def _multiply(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]


def _solve(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.linalg.solve_ex(matrix, vector[..., None])[0][..., 0]


def _log_diagonal(root: Tensor) -> Tensor:
    return root.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
