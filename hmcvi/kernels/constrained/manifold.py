"""The manifold {u : g(u) = y} of a generator: residuals, Jacobians and the density of the inputs on it."""

from __future__ import annotations

import functools
import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hmcvi.kernels.constrained.jacobian import Dense, Elementwise, Linearization, Triangular
from hmcvi.models.generator import Generator

NOT_DIFFERENTIABLE = (
    "the outputs do not depend on the inputs by differentiable operations: compute them by torch operations, "
    "without detach(), item(), numpy, no_grad or whole numbers"
)

GROWTH = 1e4  # of errors along a simulation that has to find its own past


class ManifoldPoint(NamedTuple):
    """log π(u) = log ρ(u) − ½ log |J Jᵀ| [...], its gradient [..., M], and J."""

    log_prob: Tensor
    grad: Tensor
    jacobian: Linearization


class Manifold:
    """Inputs that give what was observed, {u : c(u) = 0}: the fibre of the generator over `observed`.

    observed: y [N], or one per chain [chains, N].
    """

    def __init__(self, generator: Generator, observed: Tensor) -> None:
        self.generator, self.observed = generator, observed

    @classmethod
    def of(cls, generator: Generator, observed: Tensor) -> Manifold:
        """The manifold of observations that a user gave: checked, and in float64."""
        if observed.ndim not in (1, 2) or observed.shape[-1] != generator.num_observed:
            raise ValueError(
                f"observed must be [{generator.num_observed}], or one per chain [chains, "
                f"{generator.num_observed}], as the generator has outputs; got {list(observed.shape)}"
            )
        if not observed.isfinite().all():
            raise ValueError(
                "observed must be finite: leave missing outputs out with generator.observing(mask)"
            )
        return cls(generator, observed.detach().to(torch.float64))

    def select(self, rows: Tensor) -> Manifold:
        """The manifolds of some of the chains."""
        return self if self.observed.ndim == 1 else Manifold(self.generator, self.observed[rows])

    def residual(self, position: Tensor) -> Tensor:
        """c(u), zero on the manifold.  [..., M] -> [..., N]"""
        return self.generator.residual(position, self.observed)

    def residual_tolerance(self, tolerance: float) -> float:
        """The tolerance of |c(u)|_∞ that keeps |g(u) − y|_∞ below `tolerance`, as far as rounding allows."""
        if not self.generator.is_conditional:
            return tolerance
        rounding = 64 * torch.finfo(self.observed.dtype).eps * float(self.observed.abs().max())
        return min(tolerance, max(tolerance / GROWTH, rounding))

    def is_kept(self, old: Tensor, new: Tensor, tolerance: float) -> Tensor:
        """Whether |g(u) − y|_∞ < tolerance at `new`, unless it was not at `old` either.  [..., M] -> [...]

        Without conditionals c = g − y, and the projection has seen to it.
        """
        if not self.generator.is_conditional:
            return torch.ones_like(new[..., 0], dtype=torch.bool)
        paths = self.generator.observed(torch.stack([old, new]))
        before, after = (paths - self.observed).abs().amax(-1) < tolerance
        return after | ~before

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

    def at(self, position: Tensor) -> ManifoldPoint:
        """log π, its gradient and J at `position` [..., M]."""
        with torch.enable_grad():
            position = position.detach().requires_grad_()
            jacobian = self.linearize(position)
            log_prob = self.generator.density.finite_log_prob(position) - jacobian.log_volume()
            if log_prob.requires_grad:
                (grad,) = torch.autograd.grad(log_prob.sum(), position)
            else:  # no chain has a density, and J is the same everywhere
                grad = torch.zeros_like(position)
        return ManifoldPoint(log_prob.detach(), grad, jacobian.detach())

    def check_structure(self, position: Tensor) -> None:
        """Refuse a generator whose Jacobian at `position` [M] has not the structure it claims."""
        structure, size = self.generator.structure, self.observed.shape[-1]
        if structure == "dense":
            return
        if structure == "elementwise":
            weights = torch.linspace(-1.0, 2.0, size, dtype=position.dtype, device=position.device)
            ones, mixed = torch.zeros(2, len(position), dtype=position.dtype, device=position.device)
            ones[-size:], mixed[-size:] = 1.0, weights
            diagonal, product = self._derivative(position, torch.stack([ones, mixed]))
            excess, scale = product - weights * diagonal, 1 + product.abs()
        else:
            excess, scale = self._rows(position)[:, -size:].triu(1), torch.ones_like(position[0])
        if (excess.abs() > 1e-8 * scale).any():
            reached = "no output but its own" if structure == "elementwise" else "no output before its own"
            raise ValueError(
                f"the generator is not {structure}: each of the last {size} inputs must reach {reached}. "
                'Is structure="dense" meant?'
            )

    def _columns(self, position: Tensor, num_global: int) -> tuple[Tensor, Tensor]:
        """∂c/∂u₁ [..., N, G] by columns, and the diagonal of ∂c/∂u₂ [..., N] as its product with ones."""
        directions = torch.eye(
            num_global + 1, position.shape[-1], dtype=position.dtype, device=position.device
        )
        directions[-1, num_global:] = 1.0
        derivative = self._derivative(position, directions)
        return derivative[:-1].movedim(0, -1), derivative[-1]

    def _derivative(self, position: Tensor, directions: Tensor) -> Tensor:
        """∂c/∂u along each of `directions` [k, M], by forward mode.  [..., M] -> [k, ..., N]"""
        shape = (len(directions), *position.shape)
        tangents = (
            directions.view(len(directions), *(1,) * (position.ndim - 1), -1).expand(shape).contiguous()
        )
        _load_forward_mode()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(position.expand(shape).contiguous(), tangents)
            derivative = forward_ad.unpack_dual(self.residual(dual)).tangent
        if derivative is None:
            raise ValueError(NOT_DIFFERENTIABLE)
        return derivative

    def _rows(self, position: Tensor) -> Tensor:
        """∂c/∂u, row by row.  [..., M] -> [..., N, M]"""
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            if not position.requires_grad:
                position = position.detach().requires_grad_()
            residual = self.residual(position)
            if not residual.requires_grad:
                raise ValueError(NOT_DIFFERENTIABLE)
            size = residual.shape[-1]
            directions = torch.eye(size, dtype=residual.dtype, device=residual.device)
            directions = directions.view(size, *(1,) * (residual.ndim - 1), size).expand(
                size, *residual.shape
            )
            (rows,) = torch.autograd.grad(
                residual, position, directions, is_grads_batched=True, create_graph=again
            )
        return rows.movedim(0, -2)


@functools.cache
def _load_forward_mode() -> None:
    """Load torch's forward mode, which warns that torch.jit, on which it is built, is deprecated."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        forward_ad.make_dual(torch.zeros(()), torch.zeros(()))
