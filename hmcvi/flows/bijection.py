"""Any torch, Pyro or zuko transform as a step."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hmcvi.chain import Context, Phase, Step, Transition
from hmcvi.density import Density


class Bijection(Step):
    """z ↦ f(z), log_ratio = log|det ∂f/∂z|.

    f is a `torch.distributions.Transform`, a Pyro or zuko transform, a Pyro conditional transform (with
    `.condition(x)`) or a zuko lazy one (called with x) over vectors [..., d] or elementwise; its parameters
    are trained if it is a module.  A zuko flow moves z as it makes samples, by the inverse of its transform,
    which is slow if it is autoregressive: use `flow.transform` for the fast direction.
    sees_context: whether a lazy transform was built for a context x.
    """

    uses_force = False

    def __init__(self, transform: Any, sees_context: bool = True) -> None:
        super().__init__()
        if _is_lazy(getattr(transform, "transform", None)) and not _is_lazy(transform):
            transform = transform.transform.inv
        if not (
            hasattr(transform, "log_abs_det_jacobian")
            or hasattr(transform, "condition")
            or _is_lazy(transform)
        ):
            raise TypeError(f"expected a transform with log_abs_det_jacobian, got {type(transform).__name__}")
        self.transform, self.sees_context = transform, sees_context
        if not isinstance(transform, nn.Module) and isinstance(getattr(transform, "parts", None), list):
            self.parts = nn.ModuleList(p for p in transform.parts if isinstance(p, nn.Module))

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        transform = self._given(Context.of(context))
        if transform.domain.event_dim > 1:
            raise ValueError(f"a step moves vectors [..., d], got a transform of {transform.domain}")
        position, log_det = _value_and_log_det(transform, state.position)
        if transform.domain.event_dim == 0:
            log_det = log_det.sum(-1)
        return Transition.deterministic(Phase(position, state.momentum), log_det, flow=log_det)

    def _given(self, context: Context) -> Any:
        """f(·; x)"""
        if hasattr(self.transform, "condition"):
            return self.transform.condition(context(_identity))
        if _is_lazy(self.transform):
            return self.transform(context.data if self.sees_context else None)
        return self.transform


def _value_and_log_det(transform: Any, position: Tensor) -> tuple[Tensor, Tensor]:
    """f(z) and log|det ∂f/∂z|, together where zuko can."""
    if hasattr(transform, "call_and_ladj"):
        value, log_det = transform.call_and_ladj(position)
        return value, log_det
    value = transform(position)
    return value, transform.log_abs_det_jacobian(position, value)


def _is_lazy(transform: Any) -> bool:
    """Whether it is a zuko module that makes a transform, without importing zuko."""
    return any(f"{c.__module__}.{c.__name__}" == "zuko.lazy.LazyTransform" for c in type(transform).__mro__)


def _identity(x: Tensor) -> Tensor:
    return x
