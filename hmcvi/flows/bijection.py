"""Any torch or Pyro transform as a step."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hmcvi.chain import Context, Phase, Step, Transition
from hmcvi.density import Density


class Bijection(Step):
    """z ↦ f(z), log_ratio = log|det ∂f/∂z|.

    f is a `torch.distributions.Transform`, a Pyro transform, or a Pyro conditional transform (with
    `.condition(x)`) over vectors [..., d] or elementwise; its parameters are trained if it is a module.
    """

    uses_force = False

    def __init__(self, transform: Any) -> None:
        super().__init__()
        if not (hasattr(transform, "log_abs_det_jacobian") or hasattr(transform, "condition")):
            raise TypeError(f"expected a transform with log_abs_det_jacobian, got {type(transform).__name__}")
        self.transform = transform
        if not isinstance(transform, nn.Module) and isinstance(getattr(transform, "parts", None), list):
            self.parts = nn.ModuleList(p for p in transform.parts if isinstance(p, nn.Module))

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        transform = self.transform
        if hasattr(transform, "condition"):
            transform = transform.condition(Context.of(context)(_identity))
        if transform.domain.event_dim > 1:
            raise ValueError(f"a step moves vectors [..., d], got a transform of {transform.domain}")
        position = transform(state.position)
        log_det = transform.log_abs_det_jacobian(state.position, position)
        if transform.domain.event_dim == 0:
            log_det = log_det.sum(-1)
        return Transition.deterministic(Phase(position, state.momentum), log_det, flow=log_det)


def _identity(x: Tensor) -> Tensor:
    return x
