"""Integrators of Hamilton's equations: reversible maps of phase space that preserve volume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density, all_finite
from hmcvi.dynamics.energies import System
from hmcvi.dynamics.metrics import Metric
from hmcvi.internal.compile import repeat

_MCLACHLAN = 0.1931833275037836
_BCSS_KICK, _BCSS_DRIFT = 0.11888010966548, 0.29619504261126


@dataclass(frozen=True)
class Splitting:
    """A palindromic step of size ε: kicks b₀, b₁, …, b_s with drifts a₁, …, a_s between them.

        v ← v + b₀ε ∇log γ(z);   z ← z + a₁ε M⁻¹v;   v ← v + b₁ε ∇log γ(z);   …;   v ← v + b_sε ∇log γ(z)

    The last kick of a step is merged with the first of the next: s forces per step, the very first being
    carried by `start`.  Reversible because the coefficients are palindromic, of order two because they
    sum to one.  z, v: [..., d]; ε: scalar, [d] or [..., 1].
    """

    kicks: tuple[float, ...]
    drifts: tuple[float, ...]

    @property
    def num_stages(self) -> int:
        """Forces per step."""
        return len(self.drifts)

    def coefficients(self, num_steps: int) -> tuple[list[float], list[float]]:
        """Coefficients of all kicks and of the drifts between them, kicks of neighbouring steps merged."""
        first, *kicks = self.kicks
        inner = [*kicks[:-1], first + kicks[-1]] * num_steps
        return [first, *inner[:-1], kicks[-1]], list(self.drifts) * num_steps

    def __call__(self, system: System, start: Phase, step_size: Tensor, num_steps: int) -> Phase:
        start = start.evaluate(system.target)
        assert start.momentum is not None
        kicks, drifts = self.coefficients(num_steps)
        times = {kick: kick * step_size for kick in set(kicks)}
        moves = {drift: system.metric.drift(drift * step_size) for drift in set(drifts)}
        state, momentum = start, torch.addcmul(start.momentum, times[kicks[0]], system.force(start))
        for drift, kick in zip(drifts, kicks[1:], strict=True):
            state = system.at(moves[drift](state.position, momentum))
            momentum = torch.addcmul(momentum, times[kick], system.force(state))
        return state._replace(momentum=momentum)

    def repeated(
        self, system: System, start: Phase, step_size: Tensor, num_steps: Tensor, by_column: bool = False
    ) -> Phase:
        """The same for a number of steps [], at least one, that a compiled program need not know in advance.

        by_column: whether its loop keeps coordinates of all chains side by side, for vector instructions to
        work on chains, of which there may be many, and not on the few coordinates of each.
        """
        first, *kicks, last = self.kicks
        drift, *drifts = self.drifts

        def kicked(state: Phase, momentum: Tensor, time: Tensor) -> Tensor:
            return torch.addcmul(momentum, time, system.force(state))

        def drifted(position: Tensor, momentum: Tensor, time: Tensor) -> Tensor:
            return torch.addcmul(position, time, system.velocity(momentum))

        def to_last_kick(parts: list[Tensor], size: Tensor) -> tuple[Phase, Tensor]:
            position, momentum = _rows(parts, by_column)
            for kick, drift in zip(kicks, drifts, strict=True):
                momentum = kicked(system.at(position), momentum, kick * size)
                position = drifted(position, momentum, drift * size)
            return system.at(position), momentum

        def one(parts: list[Tensor]) -> list[Tensor]:
            state, momentum = to_last_kick(parts, inner)
            momentum = kicked(state, momentum, (last + first) * inner)
            return _packed([drifted(state.position, momentum, drift * inner), momentum], by_column)

        # what a loop of no round returns is what it was given, which the compiler then takes for two tensors
        num_rounds, inner = (num_steps - 1).clamp(min=1), step_size * (num_steps > 1)
        start = start.evaluate(system.target)
        assert start.momentum is not None
        momentum = kicked(start, start.momentum, first * step_size)
        parts = _packed([drifted(start.position, momentum, drift * step_size), momentum], by_column)
        end, momentum = to_last_kick(repeat(one, parts, num_rounds), step_size)
        return end._replace(momentum=kicked(end, momentum, last * step_size))


def _packed(rows: list[Tensor], by_column: bool) -> list[Tensor]:
    """Copies of [..., d] without gaps, as [d, ...] if by column: a loop wants no tensor twice."""
    turned = [part.movedim(-1, 0) for part in rows] if by_column else rows
    return [part.clone(memory_format=torch.contiguous_format) for part in turned]


def _rows(packed: list[Tensor], by_column: bool) -> list[Tensor]:
    return [part.movedim(0, -1) for part in packed] if by_column else packed


Integrator = Callable[[System, Phase, Tensor, int], Phase]

leapfrog = Splitting((0.5, 0.5), (1.0,))

# the smallest error of second order with two forces per step  [McLachlan 1995]
two_stage = Splitting((_MCLACHLAN, 1 - 2 * _MCLACHLAN, _MCLACHLAN), (0.5, 0.5))

# the smallest expected energy error on Gaussian targets with three  [Blanes, Casas & Sanz-Serna 2014]
three_stage = Splitting(
    (_BCSS_KICK, 0.5 - _BCSS_KICK, 0.5 - _BCSS_KICK, _BCSS_KICK),
    (_BCSS_DRIFT, 1 - 2 * _BCSS_DRIFT, _BCSS_DRIFT),
)


def trajectory(
    target: Density,
    metric: Metric,
    start: Phase,
    step_size: Tensor,
    num_steps: int,
    beta: Tensor | None = None,
    integrator: Integrator = leapfrog,
    differentiated: Integrator | None = None,
) -> tuple[Phase, Tensor]:
    """The end of a trajectory and H(end) − H(start).

    A chain whose force is not finite somewhere stays where it was, with log γ = −inf and an infinite change
    of energy; it affects neither the other chains nor any gradient.
    """
    system = System(target, metric, beta, masked=False)
    run = differentiated if differentiated is not None and torch.is_grad_enabled() else integrator
    end = system.weighed(run(system, start, step_size, num_steps))
    assert end.momentum is not None and end.log_prob is not None
    if not all_finite(end.position, end.momentum, end.log_prob):
        finite = end.log_prob.isfinite() & (end.position + end.momentum).isfinite().all(-1)
        system = System(target, metric, beta)
        end = integrator(system, start, torch.where(finite[..., None], step_size, 0.0), num_steps)
        assert end.log_prob is not None
        end = end._replace(log_prob=end.log_prob.where(finite, -torch.inf))
    return end, system.energy(end) - system.energy(start)
