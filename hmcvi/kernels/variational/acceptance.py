"""Acceptance steps inside a weighted chain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hmcvi.chain import Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.dynamics.energies import diverged
from hmcvi.flows.hamiltonian import Leapfrog
from hmcvi.networks import ConditionalMLP


def log1mexp(x: Tensor) -> Tensor:
    """log(1 − eˣ) for x < 0, accurate at both ends.

    >>> log1mexp(torch.tensor([-1e-12, -50.0], dtype=torch.float64))
    tensor([-2.7631e+01, -1.9287e-22], dtype=torch.float64)
    """
    near = x > -math.log(2)
    return torch.where(
        near,
        (-torch.expm1(x.where(near, -1.0))).log(),
        torch.log1p(-x.where(~near, -1.0).exp()),
    )


class ReverseAcceptance(nn.Module):
    """P(A=1 | s_t, t, x) = clip(e^{H(s_t)−H_rev} + tanh(network(s_t, t; x)), δ, 1−δ) where H_rev > H(s_t).

    Where H_rev ≤ H(s_t) only an acceptance can have led to s_t, and the network is not used.
    [Wolf et al. 2016, §4.3.2, §5.3]
    """

    def __init__(
        self, dim: int, context_dim: int, hidden: Sequence[int] = (200, 200), clip: float = 1e-4
    ) -> None:
        super().__init__()
        self.net = ConditionalMLP(2 * dim + 1, context_dim, hidden, 1)
        self.clip = clip

    def forward(self, state: Phase, simple: Tensor, time: float, context: Context) -> Tensor:
        """P(A=1) [...] from the new state and e^{H(s_t)−H_rev} = `simple`."""
        assert state.momentum is not None
        moment = torch.full_like(state.position[..., :1], time)
        correction = self.net(context, state.position, state.momentum, moment)[..., 0]
        return (simple + correction.tanh()).clamp(self.clip, 1 - self.clip)


class Metropolis(Step):
    """Accept the end of the trajectory s_HD with probability min(1, e^{H(s*)−H(s_HD)}), else (z, −u).

        log_ratio = log P(A = a | new, t, x) − log p(a | old)

    Without a learned model P is that of the stationary chain ("simple") and
    log_ratio = H(s_HD) − H(s*) if accepted, 0 if rejected.  [Wolf et al. 2016, eqs. 25, 29, 34]
    A trajectory that diverges, |ΔH| > 1000, is always rejected, in both directions.
    """

    uses_force = True

    def __init__(
        self, trajectory: Leapfrog, reverse: ReverseAcceptance | None = None, time: float = 1.0
    ) -> None:
        super().__init__()
        self.trajectory, self.reverse, self.time = trajectory, reverse, time

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        context = Context.of(context)
        start, end, energy_change = self.trajectory.simulate(state, target, context)
        failed = diverged(energy_change.detach().abs())
        uniform = context.randomness.uniform(energy_change)
        accepted = ~failed & (uniform.log() < -energy_change)

        log_choice = self._log_forward(energy_change, accepted, failed)
        assert start.momentum is not None
        new = end.where(accepted, start._replace(momentum=-start.momentum))
        if self.reverse is None:
            log_ratio = energy_change.where(accepted, 0.0)
        else:
            log_ratio = self._log_reverse(new, energy_change, accepted, failed, context) - log_choice
        info = {
            "acceptance": log_ratio,
            "accepted": accepted,
            "energy_change": energy_change.detach(),
            "diverged": failed,
        }
        return Transition(new, log_ratio, log_choice, torch.zeros_like(log_ratio), info)

    @staticmethod
    def _log_forward(energy_change: Tensor, accepted: Tensor, failed: Tensor) -> Tensor:
        """log p(a | s*): −ΔH⁺ if accepted, log(1 − e^{−ΔH}) if rejected (then ΔH > 0), 0 if diverged."""
        rejected = ~accepted & ~failed
        log_accept = -energy_change.where(accepted, 0.0).clamp(min=0)
        return torch.where(rejected, log1mexp(-energy_change.where(rejected, 1.0)), log_accept)

    def _log_reverse(
        self, new: Phase, energy_change: Tensor, accepted: Tensor, failed: Tensor, context: Context
    ) -> Tensor:
        """log P(A = a | new): H(s_t) − H_rev is ΔH if accepted and −ΔH if rejected."""
        assert self.reverse is not None
        exponent = torch.where(
            accepted, energy_change.where(~failed, 0.0), -energy_change.where(~failed, 0.0)
        )
        simple = exponent.clamp(max=0).exp().where(~failed, 0.0)
        undecided = (exponent < 0) & ~failed
        probability = self.reverse(new, simple, self.time, context)
        log_probability = torch.where(accepted, probability.log(), torch.log1p(-probability))
        return log_probability.where(undecided, 0.0)
