"""Overdamped Langevin dynamics as a step, with learned corrections of its drifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hmcvi.chain import Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.dynamics.energies import System, diverged
from hmcvi.dynamics.metrics import IdentityMetric, Metric
from hmcvi.internal.checks import one_of
from hmcvi.kernels.variational.reverse import FEATURES
from hmcvi.networks import ConditionalMLP


class Control(nn.Module):
    """s(z, t; x), a learned correction of the drift; zero before training.  [..., d]

    sees: what the network is given of the state, among `FEATURES`: the position z, the force ∇log γ(z), the
    position standardised by the base.
    """

    def __init__(
        self,
        dim: int,
        context_dim: int,
        hidden: Sequence[int] = (200, 200),
        sees: Sequence[str] = ("position",),
    ) -> None:
        super().__init__()
        for name in sees:
            one_of("control_sees", name, FEATURES)
        self.sees = tuple(sees)
        self.net = ConditionalMLP(len(self.sees) * dim + 1, context_dim, hidden, dim)

    def forward(self, state: Phase, target: Density, time: float, context: Context) -> Tensor:
        features = [FEATURES[name](state, target) for name in self.sees]
        return self.net(context, *features, torch.full_like(state.position[..., :1], time))


class Langevin(Step):
    """One step of Langevin dynamics at γ_β, reversed by one with a drift of its own:

        z' = z + A Aᵀ f(z) + √2 A n,   n ~ N(0, I),   A = √ε L⁻ᵀ,   M = L Lᵀ
        f(z) = ∇log γ_β(z) + s(z, t; x),   r(z') = ∇log γ_β(z') − s'(z', t; x)
        log_ratio = log N(z; z' + A Aᵀ r(z'), 2 A Aᵀ) − log N(z'; z + A Aᵀ f(z), 2 A Aᵀ)
                  = log N(n') − log N(n),   n' = n + Aᵀ (f(z) + r(z')) / √2

    forward_control, reverse_control: s and s'; without both it is the unadjusted Langevin algorithm, which is
    one leapfrog of size √(2ε) between a momentum drawn, n, and one dropped, n'.  mass(context) gives M,
    step_size(context) gives ε, temperature(context) gives β (None: the target itself).  No part of log_ratio
    is reported as noise, because it nearly cancels the change of log γ_β.

    A chain whose energy −log γ_β + ½|n|² overflows or rises by more than 1000 stays, with weight −inf.  Where
    γ is zero or not finite its force is taken as zero, and the chain goes on.
    [Thin et al. 2021; Doucet et al. 2022; Vargas et al. 2024]
    """

    uses_force = True

    def __init__(
        self,
        mass: Callable[[Context], Metric],
        step_size: Callable[[Context], Tensor],
        temperature: Callable[[Context], Tensor] | None = None,
        forward_control: Control | None = None,
        reverse_control: Control | None = None,
        time: float = 1.0,
    ) -> None:
        super().__init__()
        self.mass, self.step_size, self.temperature, self.time = mass, step_size, temperature, time
        self.forward_control, self.reverse_control = forward_control, reverse_control

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        context = Context.of(context)
        beta = self.temperature(context) if self.temperature is not None else None
        system = System(target, IdentityMetric(), beta)
        noise = context.randomness.normal(state.position)
        old = state.evaluate(target)._replace(momentum=noise)
        new = self._move(old, system, context)
        with torch.no_grad():
            energy_change = system.energy(new) - system.energy(old)
        failed, outside = _failures(old, new, energy_change)
        if failed.any():
            new = self._move(old, system, context, ~failed)
        assert new.momentum is not None
        log_ratio = 0.5 * (noise.square() - new.momentum.square()).sum(-1)
        log_ratio = log_ratio.where(~failed, -torch.inf)
        info = {
            "langevin": log_ratio,
            "energy_change": energy_change,
            "diverged": failed | outside,
        }
        zero = torch.zeros_like(log_ratio)
        return Transition(new._replace(momentum=state.momentum), log_ratio, zero, zero, info)

    def _move(self, old: Phase, system: System, context: Context, alive: Tensor | None = None) -> Phase:
        """(z, n) ↦ (z', n'); chains that are not alive stay."""
        metric, root = self.mass(context), self.step_size(context).sqrt()
        noise = old.momentum
        assert noise is not None
        drift = system.force(old)
        if self.forward_control is not None:
            drift = drift + self.forward_control(old, system.target, self.time, context)
        drift = metric.whiten(root * drift)  # Aᵀ f
        if alive is not None:
            drift, noise = drift.where(alive[..., None], 0.0), noise.where(alive[..., None], 0.0)
        new = system.at(old.position + root * metric.whiten_transposed(drift + 2**0.5 * noise))
        reverse = system.force(new)
        if self.reverse_control is not None:
            reverse = reverse - self.reverse_control(new, system.target, self.time, context)
        return new._replace(momentum=noise + (drift + metric.whiten(root * reverse)) * 0.5**0.5)


def _failures(old: Phase, new: Phase, energy_change: Tensor) -> tuple[Tensor, Tensor]:
    """Which chains cannot go on, and which have γ = 0 before or after the step.  [...], [...]"""
    assert old.log_prob is not None and new.log_prob is not None and new.momentum is not None
    finite = (new.position + new.momentum.square()).isfinite().all(-1)
    outside = (old.log_prob == -torch.inf) | (new.log_prob == -torch.inf)
    return ~finite | diverged(energy_change.where(~outside, 0.0)), outside
