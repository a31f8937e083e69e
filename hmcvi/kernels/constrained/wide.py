"""Jacobians with structure whose outputs have more inputs in common than there are outputs."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from hmcvi.kernels.constrained.jacobian import (
    Blocks,
    Elementwise,
    Linearization,
    cholesky,
    log_diagonal,
    solved,
)


class _Gram(Blocks):
    """The same J with more columns in C than rows, by the Cholesky factor of K = C Cᵀ + B Bᵀ = L Lᵀ."""

    NAMES = "columns", "own", "_unmixed", "_root"

    def __init__(self, columns: Tensor, own: Tensor) -> None:
        self.columns, self.own, self._unmixed = columns, own, self._inverted(own)
        local = self._local()
        self._root = cholesky(columns @ columns.mT + local @ local.mT)

    @abstractmethod
    def _local(self) -> Tensor:
        """B  [..., N, N]"""

    @abstractmethod
    def _diagonal(self, matrix: Tensor) -> Tensor:
        """The entries of [..., N, N] that B has, as B is stored."""

    def solve(self, vector: Tensor) -> Tensor:
        return torch.cholesky_solve(vector[..., None], self._root)[..., 0]

    def lift(self, vector: Tensor) -> Tensor:
        return self.transpose(self.solve(vector))

    def log_volume(self) -> Tensor:
        return log_diagonal(self._root)

    def volume_gradient(self) -> tuple[Tensor, ...]:
        """K⁻¹ C, and of K⁻¹ B what B has"""
        return (
            torch.cholesky_solve(self.columns, self._root),
            self._diagonal(torch.cholesky_solve(self._local(), self._root)),
        )

    def solve_between(self, other: Linearization, vector: Tensor) -> Tensor:
        assert isinstance(other, _Gram)
        return solved(other.columns @ self.columns.mT + other._local() @ self._local().mT, vector)


class WideBlocks(_Gram):
    """`Blocks` with more inputs in common than outputs."""

    def _local(self) -> Tensor:
        size = self.columns.shape[-2]
        eye = torch.eye(size).to(self.columns).expand(*self.columns.shape[:-2], size, size)
        return self._of_blocks(self.own, eye)

    def _diagonal(self, matrix: Tensor) -> Tensor:
        return blocks_of(matrix, self.own.shape[-1])


class WideElementwise(_Gram, Elementwise):
    """`Elementwise` with more inputs in common than outputs."""

    def _local(self) -> Tensor:
        return self.own.diag_embed()

    def _diagonal(self, matrix: Tensor) -> Tensor:
        return matrix.diagonal(dim1=-2, dim2=-1)


def blocks_of(matrix: Tensor, size: int) -> Tensor:
    """The square blocks on the diagonal.  [..., n D, n D] -> [..., n, D, D]"""
    pairs = matrix.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    return pairs.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
