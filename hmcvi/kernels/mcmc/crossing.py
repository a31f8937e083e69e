"""Trajectories across jumps, one coordinate or one set of independent coordinates at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.metrics import Metric
from hmcvi.kernels.mcmc.factored import FactoredDensity


class DiscontinuousSystem:
    """The Hamiltonian of `DiscontinuousHMC` and its reversible, volume-preserving integrator.

    discontinuous: mask [d]; `indices` [k] are its coordinates.
    """

    def __init__(self, density: Density, metric: Metric, discontinuous: Tensor) -> None:
        self.density, self.metric, self.discontinuous = density, metric, discontinuous
        self.indices = discontinuous.nonzero()[:, 0]
        self.has_continuous = len(self.indices) < len(discontinuous)

    @property
    def num_turns(self) -> int:
        """Of which one step consists."""
        return len(self.indices)

    def at_turn(self, turn: Tensor) -> Tensor:
        """The coordinate that has its turn.  [..., turns], from 0 to num_turns − 1 -> the same"""
        return self.indices[turn]

    def evaluate(self, state: Phase) -> Phase:
        """The same point with log γ known, and its gradient where something moves by it."""
        if state.log_prob is not None and (state.grad is not None or not self.has_continuous):
            return state
        if not self.has_continuous:
            return state._replace(log_prob=self.density.finite_log_prob(state.position))
        # unmasked: a derivative that does not exist in a discontinuous coordinate is nobody's failure
        value, grad = self.density.value_and_grad(state.position)
        return state._replace(log_prob=value.where(value.isfinite(), -torch.inf), grad=grad)

    def masses(self, like: Tensor) -> Tensor:
        """m_i = L_ii, meaningful in the discontinuous coordinates alone.  [..., d]"""
        return self.metric.color(torch.ones_like(like))

    def energy(self, state: Phase) -> Tensor:
        """H(z, v)  [...]"""
        assert state.log_prob is not None and state.momentum is not None
        white = self.metric.whiten(state.momentum)
        return white.abs().where(self.discontinuous, 0.5 * white.square()).sum(-1) - state.log_prob

    def trajectory(
        self, start: Phase, step_size: Tensor, num_steps: int, order: Tensor
    ) -> tuple[Phase, Tensor]:
        """num_steps steps, and how many coordinate updates went through [...].

        step_size: [..., 1] or [..., d]; order: [..., k], the discontinuous coordinates as they take turns.
        """
        masses = self.masses(start.position)
        lengths = step_size / masses  # ε/m_i
        state, crossings = start, torch.zeros_like(start.position[..., 0])
        for _ in range(num_steps):
            state = self.drift(self.kick(state, step_size / 2), step_size / 2)
            for index in order.split(1, -1):
                state, crossed = self.cross(state, index, lengths, masses)
                crossings = crossings + crossed
            state = self.kick(self.drift(state, step_size / 2, with_grad=True), step_size / 2)
        return self.evaluate(state), crossings

    def kick(self, state: Phase, step_size: Tensor) -> Phase:
        """v_i ← v_i + ε ∂_i log γ(z) for the continuous coordinates."""
        if not self.has_continuous:
            return state
        assert state.momentum is not None and state.grad is not None
        kicked = state.momentum + step_size * state.grad
        return state._replace(momentum=state.momentum.where(self.discontinuous, kicked))

    def drift(self, state: Phase, step_size: Tensor, with_grad: bool = False) -> Phase:
        """z_i ← z_i + ε (M⁻¹v)_i for the continuous coordinates."""
        if not self.has_continuous:
            return state
        assert state.momentum is not None
        moved = state.position + step_size * self.metric.velocity(state.momentum)
        drifted = Phase(state.position.where(self.discontinuous, moved), state.momentum)
        return self.evaluate(drifted) if with_grad else self.before_crossing(drifted)

    def before_crossing(self, state: Phase) -> Phase:
        """The same point with what `cross` needs of it."""
        return state._replace(log_prob=self.density.finite_log_prob(state.position))

    def cross(self, state: Phase, index: Tensor, lengths: Tensor, masses: Tensor) -> tuple[Phase, Tensor]:
        """Exact dynamics of coordinate i: z_i* = z_i + (ε/m_i) sign v_i,  ΔU = log γ(z) − log γ(z*);

            |v_i|/m_i > ΔU:  z_i ← z_i*,  v_i ← v_i − sign(v_i) m_i ΔU;    else:  v_i ← −v_i.

        index: [..., 1], a coordinate for each chain; lengths: ε/m, masses: m, both [..., d].
        Where log γ(z*) is not a number the barrier is infinite.
        """
        assert state.momentum is not None and state.log_prob is not None
        momentum, mass = state.momentum.gather(-1, index), masses.gather(-1, index)
        direction = momentum.sign()
        position = state.position.scatter_add(-1, index, lengths.gather(-1, index) * direction)
        log_prob = self.density.finite_log_prob(position)
        barrier = (state.log_prob - log_prob)[..., None]
        crosses = momentum.abs() / mass > barrier
        momentum = (momentum - direction * mass * barrier).where(crosses, -momentum)
        crossed = crosses[..., 0]
        return Phase(
            position.where(crosses, state.position),
            state.momentum.scatter(-1, index, momentum),
            log_prob.where(crossed, state.log_prob),
        ), crossed


class FactoredSystem(DiscontinuousSystem):
    """The same for a `FactoredDensity`: barriers are those of `local`, the energy that of log γ.

    Turns are those of sets of independent coordinates.  Any function of (z, i) is as good a potential for the
    coordinates to move in, if independent ones do not change it: each update is its own inverse up to the
    sign of v and keeps volume.

    groups: the sets as rows of indices, filled up by −1  [sets, n].
    """

    density: FactoredDensity

    def __init__(
        self, density: FactoredDensity, metric: Metric, discontinuous: Tensor, groups: Tensor
    ) -> None:
        super().__init__(density, metric, discontinuous)
        self.groups = groups

    @property
    def num_turns(self) -> int:
        return len(self.groups)

    def at_turn(self, turn: Tensor) -> Tensor:
        return turn

    def before_crossing(self, state: Phase) -> Phase:
        return state

    def cross(self, state: Phase, index: Tensor, lengths: Tensor, masses: Tensor) -> tuple[Phase, Tensor]:
        """All coordinates of a set at once, as one in `DiscontinuousSystem.cross`.

        index: [..., 1], a set for each chain.
        """
        assert state.momentum is not None
        members = self.groups[index[..., 0]]  # [..., n]
        chosen, members = members >= 0, members.clamp(min=0)
        momentum, mass = state.momentum.gather(-1, members), masses.gather(-1, members)
        direction = momentum.sign() * chosen
        step = lengths.gather(-1, members) * direction
        moved = state.position.scatter_add(-1, members, step)
        old, new = (self.density.local_log_prob(z, members) for z in (state.position, moved))
        crosses = momentum.abs() / mass > old - new
        kick = (-direction * mass * (old - new)).where(crosses, -2 * momentum).where(chosen, 0.0)
        return Phase(
            state.position.scatter_add(-1, members, step.where(crosses, 0.0)),
            state.momentum.scatter_add(-1, members, kick),
        ), (crosses & chosen).sum(-1)
