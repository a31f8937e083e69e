"""Chains in the coordinates of their base distribution."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Transform

from hmcvi.chain import Chain, Context, Phase, Transition
from hmcvi.density import Density, PulledBack


class BaseCoordinates(Chain):
    """A chain that moves e = T⁻¹(z), where T transports N(0, I) to the base of the target.

        z ↦ e,   steps on γ(T(e)) |det ∂T/∂e|,   e' ↦ z',
        log_ratio = Σ log_ratio_t + log|det ∂T/∂e'| − log|det ∂T/∂e|

    With an encoder's posterior N(μ(x), σ(x)²) as base, e = (z − μ)/σ: each datum has the units of its own
    posterior, so that one step size, one mass and one reverse model fit them all.  The target's base must
    know its transport, as `NormalDensity` does.
    """

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        transport = transport_of_base(target)
        log_det, start = _to_base(state, transport)
        transition = super().forward(start, PulledBack(target, transport), context)
        new_log_det, end = _from_base(transition.state, transport)
        return transition._replace(state=end, log_ratio=transition.log_ratio + new_log_det - log_det)


def transport_of_base(target: Density) -> Transform:
    """T with T(e) ~ base for e ~ N(0, I)."""
    transport = None if target.base is None else target.base.transport
    if transport is None:
        raise ValueError(
            "the encoder's coordinates need a target with an encoder's posterior as its base: "
            "build it as Density(..., base=NormalDensity(loc, scale)), or use coordinates='data'"
        )
    return transport


def _to_base(state: Phase, transport: Transform) -> tuple[Tensor, Phase]:
    """log|det ∂T/∂e| and the state in e, with the force ∇_e (log γ(T(e)) + log|det ∂T/∂e|) if it has one."""
    position = transport.inv(state.position)
    if state.log_prob is None or state.grad is None:
        log_det = _log_det(transport, position)
        log_prob = None if state.log_prob is None else state.log_prob + log_det
        return log_det, Phase(position, state.momentum, log_prob)
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        at = position if position.requires_grad else position.detach().requires_grad_()
        log_det = _log_det(transport, at)
        potential = (transport(at) * state.grad).sum() + log_det.sum()
        (force,) = torch.autograd.grad(potential, at, create_graph=differentiable)
    log_det = log_det if differentiable else log_det.detach()
    return log_det, Phase(position, state.momentum, state.log_prob + log_det, force)


def _from_base(state: Phase, transport: Transform) -> tuple[Tensor, Phase]:
    """log|det ∂T/∂e| and the state in z; its force is not known."""
    position, log_det = transport(state.position), _log_det(transport, state.position)
    log_prob = None if state.log_prob is None else state.log_prob - log_det
    return log_det, Phase(position, state.momentum, log_prob)


def _log_det(transport: Transform, position: Tensor) -> Tensor:
    return transport.log_abs_det_jacobian(position, transport(position))
