"""Hamiltonian Monte Carlo as a Markov kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.flows.integrators import Integrator, diverged, leapfrog, trajectory
from hmcvi.kernels.kernel import Info, Kernel
from hmcvi.kernels.metrics import IdentityMetric, Metric


class HMC(Kernel):
    """v ~ N(0, M), L steps of the integrator, accept with probability min(1, e^{−ΔH}).

    step_size: number, [d] or one per chain [..., 1].  Leaves `density` invariant, one chain or many.

    >>> kernel = HMC(Density(lambda z: -0.5 * z.square().sum(-1)), step_size=0.5, num_steps=4)
    >>> state, info = kernel.step(kernel.init(torch.zeros(3, 2)), torch.Generator().manual_seed(0))
    >>> state.position.shape, sorted(info)
    (torch.Size([3, 2]), ['acceptance_rate', 'accepted', 'diverged', 'energy_change'])
    """

    def __init__(
        self,
        density: Density,
        step_size: float | Tensor,
        num_steps: int,
        metric: Metric | None = None,
        integrator: Integrator = leapfrog,
    ) -> None:
        if num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {num_steps}")
        self.step_size = torch.as_tensor(step_size)
        if not (self.step_size > 0).all():
            raise ValueError(f"step_size must be positive, got {step_size}")
        self.num_steps, self.integrator = num_steps, integrator
        self.density, self.metric = density, metric or IdentityMetric()

    @torch.no_grad()
    def init(self, position: Tensor) -> Phase:
        return Phase(position.detach()).evaluate(self.density)

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        start = state._replace(momentum=self.metric.sample(state.position, generator))
        end, energy_change = trajectory(
            self.density, self.metric, start, self.step_size, self.num_steps, integrator=self.integrator
        )
        failed = diverged(energy_change)
        coin = torch.rand(
            energy_change.shape, dtype=energy_change.dtype, device=energy_change.device, generator=generator
        )
        accepted = ~failed & (coin.log() < -energy_change)
        info = {
            "accepted": accepted,
            "acceptance_rate": (-energy_change).clamp(max=0).exp().where(~failed, 0.0),
            "energy_change": energy_change,
            "diverged": failed,
        }
        return end.where(accepted, start)._replace(momentum=None), info
