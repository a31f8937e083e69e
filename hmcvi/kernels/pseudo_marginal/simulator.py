"""Pseudo-marginal Metropolis–Hastings for simulators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Never

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.internal.checks import positive
from hmcvi.internal.random import standard_normal, uniform
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.kernels.mcmc.metropolis import metropolis
from hmcvi.kernels.mcmc.retarget import conditional
from hmcvi.models.generator import Generator


@dataclass(frozen=True, eq=False)
class SimulatorMetropolis(Kernel):
    """u₁' = u₁ + ε n and u₂' ~ ρ₂, accepted with probability min(1, γ(u') ρ₂(u₂) / (γ(u) ρ₂(u₂'))).

    With γ = k ρ, k how near the simulation comes to what was observed, that is ABC-MCMC: the ratio is
    k' ρ₁(u₁') / (k ρ₁(u₁)), and each proposal is simulated afresh.  It keeps u₂ beside u₁, so that γ is
    invariant exactly.
    density: γ.  generator: of which ρ is the density of the inputs.  afresh: the coordinates u₂.
    step_size: ε, a number or one per chain [..., 1].  It is not tuned in warm-up: how often simulations come
    near does not tell how far to walk.
    [Marjoram et al. 2003; Graham 2018, §4.5, algorithm 8]
    """

    density: Density
    generator: Generator
    afresh: slice | Tensor
    step_size: float | Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", positive(self.step_size, "step_size"))

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        here, walk = state.position, standard_normal(state.position, generator)
        moved = here + torch.as_tensor(self.step_size).to(walk) * walk
        proposal, back = moved.clone(), moved.clone()
        proposal[..., self.afresh] = self.generator.quantile(uniform(here, generator))[..., self.afresh]
        back[..., self.afresh] = here[..., self.afresh]
        rho = self.generator.density
        # ρ₂(u₂) / ρ₂(u₂'), both beside the same u₁
        log_correction = rho.finite_log_prob(back) - rho.finite_log_prob(proposal)
        return metropolis(self.density, state, proposal, log_correction, generator)


@conditional.register
def _(kernel: SimulatorMetropolis, density: Density, position: Tensor) -> Never:
    raise ValueError("a simulation moves all inputs together, and cannot be a block of Gibbs")


def abc_mcmc(
    density: Density,
    generator: Generator,
    step_size: float | Tensor,
    latent: Sequence[str] | None = None,
) -> SimulatorMetropolis:
    """ABC-MCMC: a random walk in the inputs named `latent`, the others drawn afresh for each proposal.

    density: of `hmcvi.models.abc_density(generator, …)`, with the same generator.  latent: all inputs but
    the last, which are taken for the noise of the simulation, if None.
    """
    layout = generator.layout
    names = list(layout.shapes)
    walking = names[:-1] if latent is None else list(latent)
    if unknown := [name for name in walking if name not in names]:
        raise ValueError(f"there are no inputs called {unknown[0]!r}, only {', '.join(names)}")
    if not walking or len(set(walking)) == len(names):
        raise ValueError(
            f"some of the inputs {', '.join(names)} must walk and some be drawn afresh, got latent={walking}"
        )
    coordinates = torch.arange(layout.dim)
    afresh = [coordinates[place] for name, place in layout.slices.items() if name not in walking]
    return SimulatorMetropolis(density, generator, torch.cat(afresh), step_size)
