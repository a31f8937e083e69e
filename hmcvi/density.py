"""Log densities and the one place that differentiates them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import AffineTransform, Transform
from torch.overrides import TorchFunctionMode

from hmcvi.internal.layout import Layout
from hmcvi.internal.linalg import LinAlgError, succeeding
from hmcvi.internal.recompute import parameters_behind
from hmcvi.internal.recorded import holds
from hmcvi.internal.tracing import is_tracing

LogProb = Callable[..., Tensor]
IN_PLACE = (
    "log_prob changes its argument in place, and with it the position of the chains: write z = z + 1 instead "
    "of z += 1, torch.where instead of assigning to z[...]"
)
ONE_VECTOR = "a function of a single vector becomes one of many chains by torch.vmap(log_prob)"


class Density:
    """An unnormalised density γ on R^d, given as log_prob(z: [..., d], *given) -> [...].

    Leading dimensions are chains; with `given` tensors (such as one image per chain) the density may differ
    between them.  `base` is the initial distribution of the chains, from which annealing bridges to γ.
    With `shapes` {name: shape}, log_prob takes a dict of named variables [..., *shape] in place of z.
    dim: d, needed only where chains are to find initial positions themselves; `shapes` imply it.

    >>> import torch
    >>> normal = Density(lambda z: -0.5 * z.square().sum(-1))
    >>> value, grad = normal.value_and_grad(torch.tensor([1.0, 2.0]))
    >>> value.item(), grad.tolist()
    (-2.5, [-1.0, -2.0])
    >>> named = Density(lambda v: -0.5 * (v["mu"] - 1).square(), shapes={"mu": ()})
    >>> named.log_prob(torch.tensor([3.0])).item()
    -2.0
    """

    def __init__(
        self,
        log_prob: LogProb,
        *given: Tensor,
        base: Density | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dim: int | None = None,
    ) -> None:
        self.layout = None if shapes is None else Layout(shapes)
        if dim is not None and self.layout is not None and dim != self.layout.dim:
            raise ValueError(f"the variables fill {self.layout.dim} dimensions, dim is {dim}")
        self._dim = dim
        self._function = log_prob if self.layout is None else _on_flat_vectors(log_prob, self.layout)
        self._given = given
        self.base = base

    @property
    def dim(self) -> int | None:
        """d, if it is known."""
        return self._dim if self.layout is None else self.layout.dim

    _dim: int | None = None
    transport: Transform | None = None  # T with T(e) ~ this density for e ~ N(0, I), if it is known

    def _log_prob(self, position: Tensor) -> Tensor:
        """log γ(z) as the user's function gives it."""
        return self._function(position, *self._given)

    def check(self, position: Tensor, differentiable: bool = True) -> None:
        """Refuse a log_prob that chains cannot use, by one evaluation at `position` [..., d]."""
        if not position.is_floating_point():
            raise ValueError(f"positions are floating-point numbers, got {position.dtype}")
        given = position.detach().clone()
        with torch.enable_grad():
            try:
                value = self._log_prob(given.requires_grad_(differentiable))
            except RuntimeError as error:
                if "in-place operation" in str(error):
                    raise ValueError(IN_PLACE) from None
                raise
        if not torch.equal(given.detach().nan_to_num(), position.nan_to_num()):
            raise ValueError(IN_PLACE)
        if not isinstance(value, Tensor):
            raise TypeError(f"log_prob must return a tensor, got {type(value).__name__}")
        if value.shape != position.shape[:-1]:
            raise ValueError(
                f"log_prob must return one number per chain: {list(position.shape[:-1])} for positions "
                f"{list(position.shape)}, got {list(value.shape)}; add up the last dimension alone, sum(-1), "
                f"or, {ONE_VECTOR}"
            )
        if (value.dtype, value.device) != (position.dtype, position.device):
            raise ValueError(
                f"positions are {position.dtype} on {position.device}, log_prob returned {value.dtype} on "
                f"{value.device}: give both the same dtype and device"
            )
        if differentiable and not value.requires_grad:
            raise ValueError(
                "log_prob returned a value without gradient: it must be computed from the position by torch "
                "operations, without detach(), item(), numpy or no_grad"
            )

    def log_prob(self, position: Tensor) -> Tensor:
        """log γ(z) as it comes, finite or not.  [..., d] -> [...]

        Where validation of a distribution's arguments, or linear algebra, raises, chains get NaN whose log γ
        is not finite without validation, or whose linear algebra fails; if there are none, the error stands.
        """
        before = None if torch.compiler.is_compiling() or position.is_inference() else position._version
        try:
            value = self._log_prob(position)
            if before is not None and position._version != before:
                raise RuntimeError(IN_PLACE)
            return value
        except (ValueError, LinAlgError):
            with NoValidation():
                finite = succeeding(self._log_prob, position)
                if finite.any():
                    finite = self._log_prob(_elsewhere(position.detach(), finite)).isfinite() & finite
            if finite.all():
                raise
            return self._only(self._log_prob, position, finite)

    @staticmethod
    def _only(log_prob: LogProb, position: Tensor, finite: Tensor) -> Tensor:
        """log γ(z) of the chains that can be evaluated, NaN for the others."""
        if not finite.any():
            return position.sum(-1) * torch.nan
        return log_prob(_elsewhere(position, finite)).where(finite, torch.nan)

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """log γ(z) [...] and ∇ log γ(z) [..., d] as they come; differentiable again while gradients are on.

        The one to override where a gradient is known in closed form.
        """
        if torch.compiler.is_compiling():
            return self._functional_value_and_grad(position)
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            if not (again and position.requires_grad):
                position = position.detach().requires_grad_()
            try:
                value, grad = self._differentiated(position, again)
            except LinAlgError:  # on the way back
                good = succeeding(
                    lambda rows: self._differentiated(rows.detach().requires_grad_())[0], position
                )
                value = self._only(self.log_prob, position, good)
                (grad,) = torch.autograd.grad(value.sum(), position, create_graph=again)
                grad = grad.where(good[..., None], torch.nan)
        return value if again else value.detach(), grad

    def _differentiated(self, position: Tensor, again: bool = False) -> tuple[Tensor, Tensor]:
        value = self.log_prob(position)
        # of the sum: given weights, torch imports the half second of sympy
        (grad,) = torch.autograd.grad(value.sum(), position, create_graph=again)
        return value, grad

    def finite_log_prob(self, position: Tensor) -> Tensor:
        """log γ(z), −inf and without gradient where it is not finite.  [..., d] -> [...]"""
        value = self.log_prob(position)
        if is_tracing():
            return value.where(value.isfinite(), -torch.inf)
        if all_finite(value):
            return value
        finite = value.detach().isfinite()
        if finite.any() and value.requires_grad:
            value = self._log_prob(_elsewhere(position, finite))
        return (value if finite.any() else value.detach()).where(finite, -torch.inf)

    def finite_value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """log γ(z) and ∇ log γ(z); −inf and zero for chains where either is not finite.

        Those contribute nothing to derivatives: they are evaluated at a finite point and masked, because
        0 · NaN is NaN.
        """
        value, grad = self.value_and_grad(position)
        if all_finite(value, grad):
            return value, grad
        finite = value.isfinite() & grad.isfinite().all(-1)
        if finite.any():
            value, grad = self.value_and_grad(_elsewhere(position, finite))
        else:
            value, grad = value.detach(), grad.detach()
        return value.where(finite, -torch.inf), grad.where(finite[..., None], 0.0)

    def parameters(self, position: Tensor) -> list[Tensor]:
        """The tensors besides z and `given` that log_prob depends on differentiably, by one evaluation."""
        with torch.enable_grad():
            value = self._function(position.detach(), *(tensor.detach() for tensor in self._given))
        own = parameters_behind(value)
        return own if self.base is None else own + self.base.parameters(position)

    def _functional_value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """The same by torch.func: slower uncompiled, but it compiles to a differentiable program."""

        def total(position: Tensor) -> tuple[Tensor, Tensor]:
            value = self._log_prob(position)
            return value.sum(), value

        grad, (_, value) = torch.func.grad_and_value(total, has_aux=True)(position)
        return value, grad

    def conditional(self, position: Tensor, block: slice | Tensor) -> Density:
        """log γ as a function of the coordinates `block`, the others fixed as in `position` [..., d]."""

        def log_prob(part: Tensor) -> Tensor:
            whole = position.clone()
            whole[..., block] = part
            return self._log_prob(whole)

        return Density(log_prob)

    def of_rows(self, rows: slice, total: int) -> Density:
        """The density of some of `total` chains: of tensors given with a row for each chain, their rows."""
        new = copy.copy(self)
        new._given = tuple(x[rows] if x.ndim and len(x) == total else x for x in self._given)
        return new

    def with_base(self, base: Density) -> Density:
        """The same density with another base."""
        new = copy.copy(self)
        new.base = base
        return new

    def bridge(self, beta: float | Tensor) -> Density:
        """γ_β = base^{1−β} γ^β, from the base (β = 0) to this density (β = 1).  β: [] or one per chain."""
        return Bridge(self, beta)


class Bridge(Density):
    """The geometric path of annealing, log γ_β = (1−β) log q0 + β log γ."""

    def __init__(self, target: Density, beta: float | Tensor) -> None:
        if target.base is None:
            raise ValueError("annealing needs a base distribution: build the target as Density(..., base=q0)")
        base = target.base
        super().__init__(
            lambda z: (1 - beta) * base.finite_log_prob(z) + beta * target.finite_log_prob(z),
            base=base,
            dim=target.dim,
        )


class NormalDensity(Density):
    """N(loc, diag(scale²)), its gradient in closed form.  loc, scale: [..., d] or numbers.

    >>> NormalDensity(1.0, 2.0).value_and_grad(torch.tensor([3.0]))[1].tolist()
    [-0.5]
    """

    def __init__(self, loc: Tensor | float = 0.0, scale: Tensor | float = 1.0) -> None:
        super().__init__(normal_log_prob, torch.as_tensor(loc), torch.as_tensor(scale))
        self.transport = AffineTransform(loc, scale, event_dim=1)

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = self._given
        return self._log_prob(position), (loc - position) / scale.square()


class PulledBack(Density):
    """The density log γ(T(e)) + log|det ∂T/∂e| of e = T⁻¹(z), with N(0, I) as its base.

    In these coordinates a base q0 with the transport T is N(0, I).
    """

    def __init__(self, target: Density, transport: Transform) -> None:
        dim = None if target.dim is None else transport.inverse_shape(torch.Size([target.dim]))[-1]
        super().__init__(target.log_prob, base=NormalDensity(), dim=dim)
        self.target, self.transport = target, transport

    def _log_prob(self, position: Tensor) -> Tensor:
        assert self.transport is not None
        image = self.transport(position)
        return self.target._log_prob(image) + self.transport.log_abs_det_jacobian(position, image)

    def parameters(self, position: Tensor) -> list[Tensor]:
        assert self.transport is not None
        with torch.enable_grad():
            image = self.transport(position.detach())
            log_det = self.transport.log_abs_det_jacobian(position.detach(), image)
        return self.target.parameters(image) + parameters_behind(image.sum() + log_det.sum())


def normal_log_prob(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """The density log N(z; loc, diag(scale²)).  [..., d] -> [...]"""
    residual = (z - loc) / scale
    return -(0.5 * residual.square() + scale.log() + 0.5 * math.log(2 * math.pi)).sum(-1)


def standard_log_prob(z: Tensor) -> Tensor:
    """log N(z; 0, I).  [..., d] -> [...]"""
    return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))


class NoValidation(TorchFunctionMode):
    """Within it, arguments of torch's distributions pass their validation, in this thread alone."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch._is_all_true:  # by which they validate, and nothing else decides
            return True
        return function(*args, **(kwargs or {}))


def _on_flat_vectors(log_prob: LogProb, layout: Layout) -> LogProb:
    return lambda position, *given: log_prob(layout.unflatten(position), *given)


def all_finite(*tensors: Tensor) -> bool:
    """Whether a sum over everything is finite: cheap, and at worst a false alarm by overflow."""
    return holds(torch.stack([tensor.detach().sum() for tensor in tensors]).sum().isfinite())


def _elsewhere(position: Tensor, finite: Tensor) -> Tensor:
    """Positions, those that failed replaced by one that did not."""
    return position.where(finite[..., None], position.detach()[finite][0])
