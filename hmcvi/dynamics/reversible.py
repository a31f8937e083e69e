"""Trajectories that store only their ends, and are followed back when they are differentiated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.dynamics.energies import System
from hmcvi.dynamics.integrators import Integrator, Splitting
from hmcvi.internal.arena import arena
from hmcvi.internal.recompute import Cut, Gradients, attached, gradients


class Reversible:
    """A splitting whose derivative is found on the way back from the end of the trajectory.

    A trajectory is kick, drift, kick, …, drift, kick, each as cheap to invert as to compute.  The derivative
    (z̄, v̄) ↦ (z̄, v̄) of each is taken as it is inverted, with the force at that point and its derivative.
    """

    def __init__(self, integrator: Integrator) -> None:
        if not isinstance(integrator, Splitting):
            raise ValueError(f"only a Splitting can be followed back, got {integrator!r} as integrator")
        self.splitting = integrator

    def __call__(self, system: System, start: Phase, step_size: Tensor, num_steps: int) -> Phase:
        start = start.evaluate(system.target)
        with torch.no_grad():
            last = self.splitting(system, start, step_size, num_steps)
        kept = [arena.keep(part) for part in last if part is not None]
        cut = Cut((system, start, step_size))
        own = system.target.parameters(start.position)

        def pull_back(weights: Gradients) -> Gradients:
            system, start, step_size = cut.copy
            way = _WayBack(system, step_size, [*cut.leaves, *own])
            return way.follow(*self.splitting.coefficients(num_steps), start, Phase(*kept), weights)

        return Phase(*attached(kept, [*cut.tensors, *own], pull_back))


class _WayBack:
    """Sums up ∂L/∂inputs while a trajectory is followed back."""

    def __init__(self, system: System, step_size: Tensor, inputs: Sequence[Tensor]) -> None:
        self.system, self.step_size, self.inputs = system, step_size, inputs
        self.totals: list[Tensor | None] = [None] * len(inputs)

    def follow(
        self, kicks: Sequence[float], drifts: Sequence[float], start: Phase, end: Phase, weights: Gradients
    ) -> Gradients:
        """∂L/∂inputs from weights = ∂L/∂end."""
        position, momentum = end.position, end.momentum
        assert momentum is not None
        by_position, by_momentum, *by_value_and_grad = weights
        for drift, kick in zip(reversed(drifts), reversed(kicks[1:]), strict=True):
            with torch.enable_grad():
                here = self.system.at(position.detach().requires_grad_())
                push = kick * self.step_size * self.system.force(here)
            outputs = (push, here.log_prob, here.grad)
            change = self._collect(outputs, here.position, (by_momentum, *by_value_and_grad))
            by_position, by_value_and_grad = _sum(by_position, change), [None, None]
            momentum = momentum - push.detach()
            with torch.enable_grad():
                before = momentum.detach().requires_grad_()
                move = drift * self.step_size * self.system.velocity(before)
            by_momentum = _sum(by_momentum, self._collect((move,), before, (by_position,)))
            position = position - move.detach()
        with torch.enable_grad():
            push = kicks[0] * self.step_size * self.system.force(start)
        self._add(gradients((push,), self.inputs, (by_momentum,)))
        own = {id(start.position): by_position, id(start.momentum): by_momentum}
        self._add([own.get(id(leaf)) for leaf in self.inputs])
        return self.totals

    def _collect(self, outputs: Sequence[Tensor | None], at: Tensor, weights: Gradients) -> Tensor | None:
        """Add the gradients of the inputs, ⟨weights, ∂outputs/∂inputs⟩; returns that of `at`."""
        change, *others = gradients(outputs, [at, *self.inputs], weights)
        self._add(others)
        return change

    def _add(self, changes: Gradients) -> None:
        self.totals = [_sum(*pair) for pair in zip(self.totals, changes, strict=True)]


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b
