"""Hamiltonian dynamics of a target and of the random numbers by which its density is estimated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.dynamics.energies import accept
from hmcvi.dynamics.metrics import IdentityMetric, Metric
from hmcvi.internal.checks import at_least, positive
from hmcvi.internal.random import standard_normal, uniform
from hmcvi.internal.trees import map_tensors
from hmcvi.kernels.mcmc.kernel import Info
from hmcvi.kernels.pseudo_marginal.estimators import AuxiliaryState, StandardNormal, choose
from hmcvi.kernels.pseudo_marginal.kernels import PseudoMarginal


class AuxiliaryPhase(NamedTuple):
    """A point of phase space with what is known there."""

    state: AuxiliaryState
    momentum: Tensor  # of x  [..., d]
    auxiliary_momentum: Tensor  # of u  [..., m]


@dataclass(frozen=True, eq=False)
class PseudoMarginalHMC(PseudoMarginal):
    """H(x, u, p, r) = −log ε(x, u) + ½ uᵀu + ½ pᵀM⁻¹p + ½ rᵀr, for smooth estimators with u ~ N(0, I).

    A step kicks p and r by half of ∇log ε, moves x along M⁻¹p and (u, r) by a rotation, which is exact for
    their normal distribution, and kicks again: however many auxiliary variables there are, they cost no
    acceptance beyond what ε says of them.
    step_size: a number or one per chain [..., 1].  num_steps: L.  metric: M.
    [Alenlöv, Doucet & Lindsten 2021]
    """

    step_size: float | Tensor
    num_steps: int
    metric: Metric = None  # type: ignore[assignment]

    uses_gradient = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, num_steps=self.num_steps)
        if not isinstance(self.estimator.distribution, StandardNormal):
            raise ValueError('Hamiltonian dynamics need auxiliary variables of law "normal"')
        object.__setattr__(self, "step_size", positive(self.step_size, "step_size"))
        if self.metric is None:
            object.__setattr__(self, "metric", IdentityMetric())

    def at(self, position: Tensor, auxiliary: Tensor) -> AuxiliaryState:
        """The state of chains at x [..., d] and u [..., m]."""
        prepared: Any = None
        sizes = [position.shape[-1], auxiliary.shape[-1]]

        def log_estimate(both: Tensor) -> Tensor:
            nonlocal prepared
            target, numbers = both.split(sizes, -1)
            prepared = self.estimator.prepare(target)
            value = self.estimator.log_estimate(target, numbers, prepared)
            if not value.requires_grad:
                raise ValueError(
                    "log_estimate returned a value without gradient: apm_ss_mh and apm_ss_ss need none"
                )
            return value

        both = torch.cat([position, auxiliary], -1).detach()
        log_prob, slope = Density(log_estimate).value_and_grad(both)
        finite = log_prob.isfinite() & slope.isfinite().all(-1)
        return AuxiliaryState(
            position.detach(),
            auxiliary.detach(),
            log_prob.detach().where(finite, -torch.inf),
            map_tensors(Tensor.detach, prepared),
            slope.where(finite[..., None], 0.0),
        )

    @torch.no_grad()
    def step(
        self, state: AuxiliaryState, generator: torch.Generator | None = None
    ) -> tuple[AuxiliaryState, Info]:
        if state.grad is None:
            state = self.at(state.position, state.auxiliary)
        momentum = self.metric.color(standard_normal(state.position, generator))
        start = AuxiliaryPhase(state, momentum, standard_normal(state.auxiliary, generator))
        number = uniform(state.log_prob, generator)
        end = self.simulate(start)
        info = accept(self.energy(start), self.energy(end), number)
        info["num_gradients"] = torch.full_like(info["accepted"], self.num_steps, dtype=torch.int64)
        return choose(info["accepted"], end.state, state), info

    def simulate(self, point: AuxiliaryPhase) -> AuxiliaryPhase:
        """Follow the dynamics for L steps."""
        step_size = torch.as_tensor(self.step_size).to(point.momentum)
        for _ in range(self.num_steps):
            point = self._kick(self._drift(self._kick(point, step_size / 2), step_size), step_size / 2)
        return point

    def _kick(self, point: AuxiliaryPhase, step_size: Tensor) -> AuxiliaryPhase:
        """(p, r) ← (p, r) + ε ∇log ε(x, u)"""
        assert point.state.grad is not None
        slopes = point.state.grad.split([point.momentum.shape[-1], point.auxiliary_momentum.shape[-1]], -1)
        return point._replace(
            momentum=point.momentum + step_size * slopes[0],
            auxiliary_momentum=point.auxiliary_momentum + step_size * slopes[1],
        )

    def _drift(self, point: AuxiliaryPhase, step_size: Tensor) -> AuxiliaryPhase:
        """x ← x + ε M⁻¹p;  (u, r) ← (u cos ε + r sin ε, r cos ε − u sin ε)"""
        cos, sin = step_size.cos(), step_size.sin()
        u, r = point.state.auxiliary, point.auxiliary_momentum
        position = point.state.position + step_size * self.metric.velocity(point.momentum)
        return point._replace(
            state=self.at(position, cos * u + sin * r), auxiliary_momentum=cos * r - sin * u
        )

    def energy(self, point: AuxiliaryPhase) -> Tensor:
        """H(x, u, p, r)  [...]"""
        kinetic = self.metric.energy(point.momentum) + 0.5 * point.auxiliary_momentum.square().sum(-1)
        return kinetic + 0.5 * point.state.auxiliary.square().sum(-1) - point.state.log_prob
