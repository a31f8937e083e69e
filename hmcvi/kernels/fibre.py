"""The fibre {u : g(u) = y} of a generator: residuals, Jacobians and the density of the inputs on it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hmcvi.density import Density
from hmcvi.kernels.geometry import Dense, Elementwise, Linearization, Triangular

STRUCTURES = ("dense", "elementwise", "autoregressive")


class InputModel(Protocol):
    """What is asked of a generator (see `hmcvi.models.Generator`)."""

    @property
    def density(self) -> Density:
        """ρ, the law of the inputs u [..., M]"""

    @property
    def structure(self) -> str:
        """Of ∂c/∂u; unless dense, the last N inputs belong to the N outputs, one each"""

    def residual(self, inputs: Tensor, observed: Tensor) -> Tensor:
        """c(u), zero where g(u) = y.  [..., M], [..., N] -> [..., N]"""

    def sample(self, *shape: int, generator: torch.Generator | None = None) -> Tensor:
        """u ~ ρ  [*shape, M]"""


class FibrePoint(NamedTuple):
    """log π(u) = log ρ(u) − ½ log |J Jᵀ| [...], its gradient [..., M], and J."""

    log_prob: Tensor
    grad: Tensor
    geometry: Linearization


class Fibre:
    """The fibre over `observed` [N], or one per chain [chains, N], of a generator."""

    def __init__(self, generator: InputModel, observed: Tensor) -> None:
        self.generator, self.observed = generator, observed

    def select(self, rows: Tensor) -> Fibre:
        """The fibres of some of the chains."""
        return self if self.observed.ndim == 1 else Fibre(self.generator, self.observed[rows])

    def residual(self, position: Tensor) -> Tensor:
        """c(u)  [..., M] -> [..., N]"""
        return self.generator.residual(position, self.observed)

    def linearize(self, position: Tensor) -> Linearization:
        """J = ∂c/∂u at `position` [..., M]; differentiable while gradients are on."""
        size = self.observed.shape[-1]
        if self.generator.structure == "elementwise":
            columns, diagonal = self._columns(position, position.shape[-1] - size)
            return Elementwise(columns, diagonal)
        jacobian = self._rows(position)
        if self.generator.structure == "dense":
            return Dense(jacobian)
        return Triangular(*jacobian.split([position.shape[-1] - size, size], -1))

    def at(self, position: Tensor) -> FibrePoint:
        """Everything the dynamics need to know about a point."""
        with torch.enable_grad():
            position = position.detach().requires_grad_()
            geometry = self.linearize(position)
            log_prob = self.generator.density.log_prob(position) - geometry.log_volume()
            (grad,) = torch.autograd.grad(log_prob.sum(), position)
        return FibrePoint(log_prob.detach(), grad, geometry.detach())

    def _columns(self, position: Tensor, num_global: int) -> tuple[Tensor, Tensor]:
        """∂c/∂u₁ [..., N, G] by columns, and the diagonal of ∂c/∂u₂ as its product with ones [..., N]."""
        directions = torch.eye(
            num_global + 1, position.shape[-1], dtype=position.dtype, device=position.device
        )
        directions[-1, num_global:] = 1.0
        shape = (num_global + 1, *position.shape)
        tangents = directions.view(num_global + 1, *(1,) * (position.ndim - 1), -1).expand(shape).contiguous()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(position.expand(shape).contiguous(), tangents)
            derivative = forward_ad.unpack_dual(self.residual(dual)).tangent
        if derivative is None:
            raise ValueError("the outputs do not depend on the inputs by differentiable operations")
        return derivative[:-1].movedim(0, -1), derivative[-1]

    def _rows(self, position: Tensor) -> Tensor:
        """∂c/∂u  [..., N, M], row by row."""
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            if not position.requires_grad:
                position = position.detach().requires_grad_()
            residual = self.residual(position)
            size = residual.shape[-1]
            directions = torch.eye(size, dtype=residual.dtype, device=residual.device)
            directions = directions.view(size, *(1,) * (residual.ndim - 1), size).expand(
                size, *residual.shape
            )
            (rows,) = torch.autograd.grad(
                residual, position, directions, is_grads_batched=True, create_graph=again
            )
        return rows.movedim(0, -2)
