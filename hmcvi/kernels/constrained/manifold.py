"""The manifold {u : g(u) = y} of a generator: residuals, Jacobians and the density of the inputs on it."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from hmcvi.kernels.constrained.jacobian import Blocks, Dense, Elementwise, Linearization, Triangular
from hmcvi.kernels.constrained.wide import WideBlocks, WideElementwise, blocks_of
from hmcvi.models.generator import Generator

NOT_DIFFERENTIABLE = (
    "the outputs do not depend on the inputs by differentiable operations: compute them by torch operations, "
    "without detach(), item(), numpy, no_grad or whole numbers"
)

FORMS: dict[str, Any] = {
    "dense": Dense,
    "autoregressive": Triangular,
}
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
    def of(cls, generator: Generator, observed: Tensor) -> Self:
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

    @property
    def form(self) -> Any:
        """The subclass of `Linearization` for the structure of the generator."""
        if self.generator.structure != "elementwise":
            return FORMS[self.generator.structure]
        if self._is_wide:
            return WideElementwise if self.generator.block == 1 else WideBlocks
        return Elementwise if self.generator.block == 1 else Blocks

    @property
    def _is_wide(self) -> bool:
        """Whether more inputs reach all outputs than there are outputs."""
        return self.generator.dim > 2 * self.generator.num_observed

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
        return self.form(*self._parts(position))

    def _parts(self, position: Tensor) -> tuple[Tensor, ...]:
        """What the form of J is made of: C and d or B, J, or C and T."""
        size = self.observed.shape[-1]
        num_global = position.shape[-1] - size
        if issubclass(self.form, Blocks) and not self._is_wide:
            return self._columns(position, num_global)
        if self.form is Dense:
            return (self._rows(position),)
        jacobian = self._rows_of_copies(position) if self._is_wide else self._rows(position)
        columns, local = jacobian.split([num_global, size], -1)
        if self.form is WideElementwise:
            return columns, local.diagonal(dim1=-2, dim2=-1)
        return columns, blocks_of(local, self.generator.block) if self.form is WideBlocks else local

    def at(self, position: Tensor) -> ManifoldPoint:
        """log π, its gradient and J at `position` [..., M]:

        ∇log π = ∇log ρ − Σ_ij ((J Jᵀ)⁻¹ J)_ij ∇J_ij
        """
        with torch.enable_grad():
            position = position.detach().requires_grad_()
            parts = self._parts(position)
            log_rho = self.generator.density.finite_log_prob(position)
        jacobian = self.form(*(part.detach() for part in parts))
        weights = (torch.ones_like(log_rho), *(-weight for weight in jacobian.volume_gradient()))
        # no chain has a density, or J is the same everywhere
        varying = [(f, w) for f, w in zip((log_rho, *parts), weights, strict=True) if f.requires_grad]
        grad = torch.zeros_like(position)
        if varying:
            functions, weights = zip(*varying, strict=True)
            (found,) = torch.autograd.grad(functions, position, weights, allow_unused=True)
            grad = grad if found is None else found
        return ManifoldPoint(log_rho.detach() - jacobian.log_volume(), grad, jacobian)

    def check_structure(self, position: Tensor) -> None:
        """Refuse a generator whose Jacobian at `position` [M] has not the structure it claims."""
        structure, size = self.generator.structure, self.observed.shape[-1]
        if structure == "dense":
            return
        if structure == "elementwise":
            transpose, units = self._transpose(position), self._local_units(position, size)
            own = torch.stack([transpose.derivative(unit) for unit in units])
            block = self.generator.block
            weights = torch.linspace(-1.0, 2.0, size // block).to(position).repeat_interleave(block)
            mixed = torch.cat([position.new_zeros(len(position) - size), weights])
            product = torch.stack([transpose.derivative(mixed * unit) for unit in units])
            excess, scale = product - weights * own, 1 + product.abs()
        else:
            excess, scale = self._rows(position)[:, -size:].triu(1), torch.ones_like(position[0])
        if (excess.abs() > 1e-8 * scale).any():
            near = "its own" if self.generator.block == 1 else "those of its block"
            reached = f"no output but {near}" if structure == "elementwise" else "no output before its own"
            raise ValueError(
                f"the generator is not {structure}: each of the last {size} inputs must reach {reached}. "
                'Is structure="dense" meant?'
            )

    def _columns(self, position: Tensor, num_global: int) -> tuple[Tensor, Tensor]:
        """∂c/∂u₁ [..., N, G] by columns, and of ∂c/∂u₂ its diagonal [..., N] or its blocks [..., n, D, D].

        Jᵀ1 has the diagonal already; the columns of all blocks are D products with J.
        """
        transpose, again = self._transpose(position), torch.is_grad_enabled()
        local = position.shape[-1] - num_global
        units = torch.eye(num_global, position.shape[-1], dtype=position.dtype, device=position.device)
        columns = [transpose.derivative(unit, again) for unit in units]
        if self.form is Elementwise:
            own = transpose.product[..., num_global:]
        else:
            units = self._local_units(position, local)
            own = torch.stack([transpose.derivative(unit, again) for unit in units], -1)
            own = own.unflatten(-2, (-1, self.generator.block))
        if not again:
            own = own.detach()
        return torch.stack(columns, -1) if columns else own.new_empty(*position.shape[:-1], local, 0), own

    def _local_units(self, position: Tensor, local: int) -> Tensor:
        """For each place in a block the sum of the unit vectors of all inputs there.  [D, M]"""
        block = self.generator.block
        units = torch.eye(block, dtype=position.dtype, device=position.device).repeat(1, local // block)
        return torch.cat([units.new_zeros(block, position.shape[-1] - local), units], -1)

    def _transpose(self, position: Tensor) -> _Transpose:
        with torch.enable_grad():
            position, residual = self._differentiable(position)
            weights = torch.ones_like(residual).requires_grad_()
            (product,) = torch.autograd.grad(residual, position, weights, create_graph=True)
        return _Transpose(weights, product)

    def _rows(self, position: Tensor) -> Tensor:
        """∂c/∂u, row by row.  [..., M] -> [..., N, M]"""
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            position, residual = self._differentiable(position)
            size = residual.shape[-1]
            directions = torch.eye(size, dtype=residual.dtype, device=residual.device)
            directions = directions.view(size, *(1,) * (residual.ndim - 1), size).expand(
                size, *residual.shape
            )
            (rows,) = torch.autograd.grad(
                residual, position, directions, is_grads_batched=True, create_graph=again
            )
        return rows.movedim(0, -2)

    def _rows_of_copies(self, position: Tensor) -> Tensor:
        """The same, the i-th row at the i-th of N copies of all positions: without vmap in half the time."""
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            copies = position if again and position.requires_grad else position.detach().requires_grad_()
            copies = copies.expand(self.observed.shape[-1], *position.shape)
            own = self.residual(copies).diagonal(dim1=0, dim2=-1)
            if not own.requires_grad:
                raise ValueError(NOT_DIFFERENTIABLE)
            (rows,) = torch.autograd.grad(own.sum(), copies, create_graph=again)
        return rows.movedim(0, -2)

    def _differentiable(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """u, a leaf of the graph unless it is part of one, and c(u) with its graph."""
        if not position.requires_grad:
            position = position.detach().requires_grad_()
        residual = self.residual(position)
        if not residual.requires_grad:
            raise ValueError(NOT_DIFFERENTIABLE)
        return position, residual


class _Transpose(NamedTuple):
    """Jᵀλ as a linear function of λ, at λ = 1, for products J v by its derivative.

    Forward mode would do the same, but torch sends each of its operations on a number that has a derivative
    and one that has none through Python.
    """

    weights: Tensor  # λ [..., N]
    product: Tensor  # Jᵀλ [..., M]

    def derivative(self, direction: Tensor, again: bool = False) -> Tensor:
        """J v = ∂(vᵀJᵀλ)/∂λ, v [M].  [..., N]"""
        with torch.enable_grad():
            (derivative,) = torch.autograd.grad(
                (self.product * direction).sum(), self.weights, create_graph=again, retain_graph=True
            )
        return derivative
