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
        return log_diagonal(self._root)

    def volume_gradient(self) -> tuple[Tensor, ...]:
        return (torch.cholesky_solve(self.jacobian, self._root),)

    def solve_between(self, other: Linearization, vector: Tensor) -> Tensor:
        assert isinstance(other, Dense)
        return solved(other.jacobian @ self.jacobian.mT, vector)

    def step_within(self, subspace: Tensor, vector: Tensor) -> Tensor:
        return _multiply(subspace, solved(self.jacobian @ subspace, vector))

    def log_volume_within(self, subspace: Tensor) -> Tensor:
        return torch.linalg.slogdet(self.jacobian @ subspace)[1]


class Blocks(Linearization):
    """J = [C, B], B = diag(B₁, …, B_n): each D outputs with D inputs of their own, inputs (u₁, u₂).

    C: [..., N, G], B: [..., n, D, D], N = n D.  With W = B⁻¹C, S = I + WᵀW = L Lᵀ and A = L⁻¹Wᵀ,
    (B Bᵀ + C Cᵀ)⁻¹ = B⁻ᵀ (I − AᵀA) B⁻¹,   |B Bᵀ + C Cᵀ| = |B|² |S|.
    """

    NAMES: ClassVar[tuple[str, ...]] = "columns", "own", "_unmixed", "_root", "_inverse", "_whitened"

    def __init__(self, columns: Tensor, own: Tensor) -> None:
        self.columns, self.own, self._unmixed = columns, own, self._inverted(own)
        scaled, eye = self._undo(columns), _eye(columns)
        self._root = cholesky(eye + scaled.mT @ scaled)
        self._inverse = torch.linalg.solve_triangular(self._root, eye.expand_as(self._root), upper=False)
        self._whitened = self._inverse @ scaled.mT

    @staticmethod
    def _inverted(own: Tensor) -> Tensor:
        """B⁻¹, NaN where it does not exist."""
        inverse, failed = torch.linalg.inv_ex(own)
        return inverse.where((failed == 0)[..., None, None], torch.nan)

    @staticmethod
    def _of_blocks(blocks: Tensor, matrix: Tensor) -> Tensor:
        """diag(blocks) X  [..., n, D, D], [..., N, k] -> [..., N, k]"""
        return (blocks @ matrix.unflatten(-2, blocks.shape[-3:-1])).flatten(-3, -2)

    def _undo(self, matrix: Tensor) -> Tensor:
        """B⁻¹ X  [..., N, k]"""
        return self._of_blocks(self._unmixed, matrix)

    def _undo_transposed(self, matrix: Tensor) -> Tensor:
        """B⁻ᵀ X  [..., N, k]"""
        return self._of_blocks(self._unmixed.mT, matrix)

    def _mix(self, vector: Tensor) -> Tensor:
        """B v  [..., N]"""
        return self._of_blocks(self.own, vector[..., None])[..., 0]

    def _mix_transposed(self, vector: Tensor) -> Tensor:
        """Bᵀ λ  [..., N]"""
        return self._of_blocks(self.own.mT, vector[..., None])[..., 0]

    def apply(self, vector: Tensor) -> Tensor:
        size = self.columns.shape[-1]
        return _multiply(self.columns, vector[..., :size]) + self._mix(vector[..., size:])

    def transpose(self, vector: Tensor) -> Tensor:
        return torch.cat([_multiply(self.columns.mT, vector), self._mix_transposed(vector)], -1)

    def solve(self, vector: Tensor) -> Tensor:
        scaled = self._undo(vector[..., None])
        return self._undo_transposed(scaled - self._whitened.mT @ (self._whitened @ scaled))[..., 0]

    def lift(self, vector: Tensor) -> Tensor:
        """(L⁻ᵀa, w − Aᵀa) with w = B⁻¹b and a = A w"""
        scaled = self._undo(vector[..., None])
        inner = self._whitened @ scaled
        return torch.cat([self._inverse.mT @ inner, scaled - self._whitened.mT @ inner], -2)[..., 0]

    def log_volume(self) -> Tensor:
        return self.log_volume_within(self.columns) + log_diagonal(self._root)

    def volume_gradient(self) -> tuple[Tensor, ...]:
        """B⁻ᵀ Aᵀ L⁻¹, and of each block B_i⁻ᵀ (I − A_iᵀ A_i)"""
        columns = self._undo_transposed(self._whitened.mT @ self._inverse)
        parts = self._whitened.mT.unflatten(-2, self.own.shape[-3:-1])
        return columns, self._unmixed.mT @ (_eye(self.own) - parts @ parts.mT)

    def solve_between(self, other: Linearization, vector: Tensor) -> Tensor:
        assert isinstance(other, Blocks)
        left, right = other._undo(other.columns), self._undo(self.columns)
        scaled = other._undo(vector[..., None])
        small = torch.linalg.solve_ex(_eye(left) + right.mT @ left, right.mT @ scaled)[0]
        return self._undo_transposed(scaled - left @ small)[..., 0]

    def step_within(self, subspace: Tensor, vector: Tensor) -> Tensor:
        return _local(self.columns, self._undo(vector[..., None])[..., 0])

    def log_volume_within(self, subspace: Tensor) -> Tensor:
        return torch.linalg.slogdet(self.own)[1].sum(-1)


class Elementwise(Blocks):
    """J = [C, diag(d)], each output with an input of its own: blocks of one.  C: [..., N, G], d: [..., N]."""

    @staticmethod
    def _inverted(own: Tensor) -> Tensor:
        return 1 / own

    def _undo(self, matrix: Tensor) -> Tensor:
        return matrix * self._unmixed[..., None]

    _undo_transposed = _undo

    def _mix(self, vector: Tensor) -> Tensor:
        return self.own * vector

    _mix_transposed = _mix

    def volume_gradient(self) -> tuple[Tensor, ...]:
        """D⁻¹ Aᵀ L⁻¹ and (1 − diag(AᵀA)) / d"""
        columns = self._undo(self._whitened.mT @ self._inverse)
        return columns, (1 - self._whitened.square().sum(-2)) * self._unmixed

    def log_volume_within(self, subspace: Tensor) -> Tensor:
        return self.own.abs().log().sum(-1)


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
        return log_diagonal(self.triangle) + log_diagonal(self._root)

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
        return log_diagonal(self.triangle)


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


def solved(matrix: Tensor, vector: Tensor) -> Tensor:
    return torch.linalg.solve_ex(matrix, vector[..., None])[0][..., 0]


def log_diagonal(root: Tensor) -> Tensor:
    return root.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
