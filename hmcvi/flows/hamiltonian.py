"""Hamiltonian dynamics as a flow on phase space."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from hmcvi.chain import Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.dynamics.energies import MAX_ENERGY_ERROR, diverged
from hmcvi.dynamics.integrators import Integrator, leapfrog, trajectory
from hmcvi.dynamics.metrics import Metric
from hmcvi.dynamics.reversible import Reversible
from hmcvi.internal.checks import at_least, positive
from hmcvi.internal.compile import Compiled
from hmcvi.internal.recorded import holds


class Leapfrog(Step):
    """L steps of an integrator: (z, v) ↦ (z', v'), log_ratio = 0 because volume is preserved.

    mass(context) gives the metric, step_size(context) gives ε, temperature(context) gives the β at
    which the dynamics run, [] or one per chain [...] (None: the target itself).

    A chain that diverges has its momentum reversed instead, (z, v) ↦ (z, −v).  The map is still a bijection
    that preserves volume: the reversed trajectory has the energy error −ΔH and divergence depends on |ΔH|
    alone, so that no other trajectory ends in a state whose momentum was reversed.  max_energy_error: the
    |ΔH| above which it has diverged.  A small one bounds what a chain at the edge of stability can lose, but
    trajectories that turn back teach the step size nothing: the initial one must suit most chains.
    """

    uses_force = True
    reversible = True

    def __init__(
        self,
        mass: Callable[[Context], Metric],
        step_size: Callable[[Context], Tensor],
        num_steps: int,
        temperature: Callable[[Context], Tensor] | None = None,
        integrator: Integrator = leapfrog,
        max_energy_error: float = MAX_ENERGY_ERROR,
    ) -> None:
        super().__init__()
        at_least(1, num_leapfrog=num_steps)
        positive(max_energy_error, "max_energy_error")
        self.mass, self.step_size, self.temperature = mass, step_size, temperature
        self.num_steps, self.integrator, self.max_energy_error = num_steps, integrator, max_energy_error

    def simulate(self, state: Phase, target: Density, context: Context) -> tuple[Phase, Phase, Tensor]:
        """The initial state with its force, the end of its trajectory, and the change of H between them."""
        start = state.evaluate(target)
        beta = self.temperature(context) if self.temperature is not None else None
        metric, step_size = self.mass(context), self.step_size(context)
        end, energy_change = trajectory(
            target, metric, start, step_size, self.num_steps, beta, self.integrator, self._tracked(context)
        )
        return start, end, energy_change

    def _tracked(self, context: Context) -> Integrator:
        """The integrator to use while gradients are recorded."""
        if context.memory == "reversible":
            return Reversible(self.integrator)
        if context.programs is not None:
            make = functools.partial(Compiled, self.integrator, "the trajectory", any_size=True)
            return context.programs.get(self.integrator, make)
        return self.integrator

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        start, end, energy_change = self.simulate(state, target, Context.of(context))
        failed = diverged(energy_change.detach().abs(), self.max_energy_error)
        new = end
        if not holds(~failed):
            assert start.momentum is not None
            new = end.where(~failed, start._replace(momentum=-start.momentum))
        info = {"energy_change": energy_change.detach(), "diverged": failed}
        return Transition.deterministic(new, torch.zeros_like(energy_change), **info)


class Cool(Step):
    """Scale the momentum, v ↦ ρ v; log_ratio = d log ρ.  rho() gives ρ > 0.  [Caterini et al. 2018]"""

    def __init__(self, rho: Callable[[], Tensor]) -> None:
        super().__init__()
        self.rho = rho

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        assert state.momentum is not None
        rho = self.rho()
        price = state.momentum.shape[-1] * rho.log() * torch.ones_like(state.momentum[..., 0])
        return Transition.deterministic(state._replace(momentum=rho * state.momentum), price, momentum=price)
