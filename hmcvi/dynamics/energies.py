"""Energies of phase space, and divergence and acceptance by them."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.forces import ForcedDensity
from hmcvi.dynamics.metrics import Metric

MAX_ENERGY_ERROR = 1000.0  # a trajectory that gains more has diverged
ANNEALED_ENERGY_ERROR = 30.0  # on a path: a step at the edge of stability would cost the training more


class System:
    """The Hamiltonian H(z, v) = −log γ_β(z) + ½ vᵀM⁻¹v  with  γ_β = base^{1−β} γ^β  (β = None: γ itself).

    β: [] or one per chain [...].  A `Phase` always carries log γ and ∇ log γ, whatever β is, so a chain whose
    temperature changes from step to step computes each force of γ once.  masked: whether a force that is not
    finite becomes zero.
    """

    def __init__(
        self, target: Density, metric: Metric, beta: Tensor | None = None, masked: bool = True
    ) -> None:
        if beta is not None and target.base is None:
            raise ValueError("annealing needs a base distribution: build the target as Density(..., base=q0)")
        self.target, self.metric, self.beta, self.masked = target, metric, beta, masked
        self._ends: list[tuple[Tensor, Tensor]] = []  # positions and log q, of the first force and the last

    def at(self, position: Tensor) -> Phase:
        """A point with log γ, unless the force is not its own, and its gradient, without momentum."""
        if isinstance(self.target, ForcedDensity) and not self.masked:
            return Phase(position, None, None, self.target.force(position))
        evaluate = self.target.finite_value_and_grad if self.masked else self.target.value_and_grad
        log_prob, grad = evaluate(position)
        return Phase(position, None, log_prob, grad)

    def weighed(self, state: Phase) -> Phase:
        """The same point with log γ known, if trajectories moved by another force have left it open."""
        if state.log_prob is not None:
            return state
        return state._replace(log_prob=self.target.log_prob(state.position))

    def force(self, state: Phase) -> Tensor:
        """∇ log γ_β(z)  [..., d]"""
        assert state.grad is not None
        if self.beta is None:
            return state.grad
        assert self.target.base is not None
        log_base, base_grad = self.target.base.value_and_grad(state.position)
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._ends = [*self._ends[:1], (state.position, log_base)]
        beta = self.beta[..., None]
        return (1 - beta) * base_grad + beta * state.grad

    def velocity(self, momentum: Tensor) -> Tensor:
        """M⁻¹ v  [..., d]"""
        return self.metric.velocity(momentum)

    def energy(self, state: Phase) -> Tensor:
        """H(z, v)  [...]"""
        assert state.log_prob is not None and state.momentum is not None
        log_prob = state.log_prob
        if self.beta is not None:
            inside = log_prob > -torch.inf
            base = self._log_base(state.position)
            log_prob = (1 - self.beta) * base + self.beta * log_prob.where(inside, 0.0)
            log_prob = log_prob.where(inside, -torch.inf)
        return self.metric.energy(state.momentum) - log_prob

    def _log_base(self, position: Tensor) -> Tensor:
        """log q, which the forces at both ends of a trajectory have found already."""
        ends = [] if torch.is_grad_enabled() else self._ends
        known = [log_base for place, log_base in ends if place is position]
        assert self.target.base is not None
        return known[0] if known else self.target.base.log_prob(position)


def diverged(energy_change: Tensor, limit: float = MAX_ENERGY_ERROR) -> Tensor:
    """Whether H(new) − H(old) is not finite, or larger than on any trajectory that follows the dynamics."""
    return ~((energy_change <= limit) & (energy_change > -torch.inf))


def accept(old_energy: Tensor, new_energy: Tensor, uniform: Tensor) -> dict[str, Tensor]:
    """Accept with probability min(1, e^{−ΔH}), ΔH = H(new) − H(old), and never after a divergence.

    uniform ~ U(0, 1).  All [...]; `energy` is that of the new state if accepted, else of the old one.
    """
    energy_change = new_energy - old_energy
    known = energy_change.nan_to_num(torch.inf, torch.inf, torch.inf)
    failed = known > MAX_ENERGY_ERROR  # as `diverged` says; e to the minus that is zero in every dtype
    rate = (-known).clamp(max=0).exp()
    accepted = uniform < rate
    return {
        "accepted": accepted,
        "acceptance_rate": rate,
        "energy": new_energy.where(accepted, old_energy),
        "energy_change": energy_change,
        "diverged": failed,
    }
