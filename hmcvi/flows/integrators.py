"""Integrators of Hamilton's equations: reversible maps of phase space that preserve volume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from hmcvi.chain import Phase, Target

MAX_ENERGY_ERROR = 1000.0  # a trajectory that gains more has diverged


class Kinetic(Protocol):
    """The kinetic energy ½ vᵀM⁻¹v and its gradient M⁻¹v."""

    def energy(self, momentum: Tensor) -> Tensor: ...

    def velocity(self, momentum: Tensor) -> Tensor: ...


class System:
    """H(z, v) = −log γ_β(z) + ½ vᵀM⁻¹v  with  γ_β = base^{1−β} γ^β  (β = None: γ itself).

    A `Phase` always carries log γ and ∇ log γ, whatever β is, so a chain whose temperature changes
    from step to step computes each force of γ once.
    """

    def __init__(self, target: Target, metric: Kinetic, beta: Tensor | None = None) -> None:
        if beta is not None and target.base is None:
            raise ValueError("annealing needs a place to start: build the target as Density(..., base=q0)")
        self.target, self.metric, self.beta = target, metric, beta

    def force(self, state: Phase) -> Tensor:
        """∇ log γ_β(z)  [..., d]"""
        assert state.grad is not None
        if self.beta is None:
            return state.grad
        assert self.target.base is not None
        _, base_grad = self.target.base.value_and_grad(state.position)
        return (1 - self.beta) * base_grad + self.beta * state.grad

    def velocity(self, momentum: Tensor) -> Tensor:
        """M⁻¹ v  [..., d]"""
        return self.metric.velocity(momentum)

    def energy(self, state: Phase) -> Tensor:
        """H(z, v)  [...]"""
        assert state.log_prob is not None and state.momentum is not None
        log_prob = state.log_prob
        if self.beta is not None:
            assert self.target.base is not None
            log_prob = (1 - self.beta) * self.target.base.log_prob(state.position) + self.beta * log_prob
        return self.metric.energy(state.momentum) - log_prob


Integrator = Callable[[System, Phase, Tensor, int], Phase]


def leapfrog(system: System, state: Phase, step_size: Tensor, num_steps: int) -> Phase:
    """Kick–drift–kick with merged inner kicks: num_steps forces, the first being carried by `state`.

        v ← v + (ε/2) ∇log γ(z);   z ← z + ε M⁻¹v;   v ← v + (ε/2) ∇log γ(z)

    z, v: [..., d]; ε: scalar, [d] or [..., 1].  A trajectory that meets a point where γ or its force is
    not finite ends with log γ = −inf.  [Wolf et al. 2016, eq. 7]
    """
    state = state.evaluate(system.target)
    position, momentum = state.position, state.momentum
    assert momentum is not None and state.log_prob is not None
    lowest = state.log_prob.detach()
    half_step = 0.5 * step_size
    momentum = momentum + half_step * system.force(state)
    for step in range(num_steps):
        position = position + step_size * system.velocity(momentum)
        state = Phase(position).evaluate(system.target)
        momentum = momentum + (step_size if step < num_steps - 1 else half_step) * system.force(state)
        assert state.log_prob is not None
        lowest = torch.minimum(lowest, state.log_prob.detach())
    assert state.log_prob is not None
    return state._replace(momentum=momentum, log_prob=state.log_prob.where(lowest > -torch.inf, -torch.inf))


def diverged(energy_change: Tensor) -> Tensor:
    """Whether H(new) − H(old) is not finite or larger than any trajectory that follows the dynamics."""
    return ~(energy_change <= MAX_ENERGY_ERROR)
