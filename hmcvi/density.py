"""Log densities and the one place that differentiates them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

LogProb = Callable[..., Tensor]
ValueAndGrad = Callable[..., tuple[Tensor, Tensor]]


class Density:
    """An unnormalised density γ on R^d, given as log_prob(z: [..., d], *given) -> [...].

    Leading dimensions are chains; `given` tensors (one image per chain, say) may make the density a
    different one for each.  `base` is the distribution chains start from; annealed steps bridge from it.

    >>> import torch
    >>> normal = Density(lambda z: -0.5 * z.square().sum(-1))
    >>> value, grad = normal.value_and_grad(torch.tensor([1.0, 2.0]))
    >>> value.item(), grad.tolist()
    (-2.5, [-1.0, -2.0])
    """

    def __init__(
        self,
        log_prob: LogProb,
        *given: Tensor,
        base: Density | None = None,
        value_and_grad: ValueAndGrad | None = None,
    ) -> None:
        self._log_prob = log_prob
        self._given = given
        self._differentiable = value_and_grad or partial(eager_value_and_grad, log_prob)
        self.base = base

    def log_prob(self, position: Tensor) -> Tensor:
        """log γ(z).  [..., d] -> [...]"""
        return self._log_prob(position, *self._given)

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """log γ(z) [...] and ∇ log γ(z) [..., d]; differentiable again while gradients are on.

        Chains where either is not finite get −inf and a zero gradient, and contribute nothing to
        derivatives: they are evaluated at a finite point and masked, because 0 · NaN is NaN.
        """
        value, grad = self._evaluate(position)
        if math.isfinite((value.detach().sum() + grad.detach().sum()).item()):  # the usual case, cheaply
            return value, grad
        finite = value.isfinite() & grad.isfinite().all(-1)
        if finite.all():
            return value, grad
        if finite.any():
            somewhere = position.detach()[finite][0]
            value, grad = self._evaluate(torch.where(finite[..., None], position, somewhere))
        else:
            value, grad = value.detach(), grad.detach()
        return value.where(finite, -torch.inf), grad.where(finite[..., None], 0.0)

    def bridge(self, beta: float | Tensor) -> Density:
        """γ_β = base^{1−β} γ^β, between the base (β = 0) and this density (β = 1)."""
        return Bridge(self, beta)

    def _evaluate(self, position: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            return self._differentiable(position, *self._given)
        with torch.enable_grad():
            position = position.detach().requires_grad_()
            value = self.log_prob(position)
            (grad,) = torch.autograd.grad(value.sum(), position)
        return value.detach(), grad


class Bridge(Density):
    """log γ_β = (1−β) log q0 + β log γ: the geometric path of annealing."""

    def __init__(self, target: Density, beta: float | Tensor) -> None:
        if target.base is None:
            raise ValueError("annealing needs a place to start: build the target as Density(..., base=q0)")
        base = target.base
        super().__init__(
            lambda z: (1 - beta) * base.log_prob(z) + beta * target.log_prob(z),
            base=base,
        )


def eager_value_and_grad(log_prob: LogProb, position: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
    """Eager form: reverse-mode autograd that keeps its graph."""
    if not position.requires_grad:
        position = position.detach().requires_grad_()
    value = log_prob(position, *given)
    (grad,) = torch.autograd.grad(value.sum(), position, create_graph=True)
    return value, grad


def compiled_value_and_grad(log_prob: LogProb) -> ValueAndGrad:
    """Compiled form of the same: torch.compile over torch.func, for a log_prob that lives long."""

    def summed(position: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        value = log_prob(position, *given)
        return value.sum(), value

    def value_and_grad(position: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        grad, (_, value) = torch.func.grad_and_value(summed, has_aux=True)(position, *given)
        return value, grad

    return torch.compile(value_and_grad)
