"""Pseudo-marginal Metropolis–Hastings for simulators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.internal import random
from hmcvi.internal.layout import Layout
from hmcvi.kernels.mcmc.kernel import Info, Kernel, positive
from hmcvi.kernels.mcmc.metropolis import metropolis


class InputLaw(Protocol):
    """What is asked of the law ρ of a simulator's inputs (see `hmcvi.models.Generator`)."""

    @property
    def density(self) -> Density:
        """ρ, the inputs independent of each other"""

    @property
    def layout(self) -> Layout:
        """Their names"""

    def quantile(self, uniform: Tensor) -> Tensor:
        """u ~ ρ, one from each of `uniform` in (0, 1)  [..., M]"""


class SimulatorMetropolis(Kernel):
    """u₁' = u₁ + ε n and u₂' ~ ρ₂, accepted with probability min(1, γ(u') ρ₂(u₂) / (γ(u) ρ₂(u₂'))).

    With γ = k ρ, k how near the simulation comes to what was observed, that is ABC-MCMC: the ratio is
    k' ρ₁(u₁') / (k ρ₁(u₁)), and each proposal is simulated afresh.  It keeps u₂ beside u₁, so that γ is
    invariant exactly.
    density: γ.  law: ρ.  afresh: the coordinates u₂.  step_size: ε, a number or one per chain [..., 1].  It
    is not tuned in warm-up: how often simulations come near does not tell how far to walk.
    [Marjoram et al. 2003; Graham 2018, §4.5, algorithm 8]
    """

    def __init__(
        self, density: Density, law: InputLaw, afresh: slice | Tensor, step_size: float | Tensor
    ) -> None:
        self.density, self.law, self.afresh = density, law, afresh
        self.step_size = positive(step_size, "step_size")

    def conditional(self, position: Tensor, block: slice | Tensor) -> SimulatorMetropolis:
        raise ValueError("a simulation moves all inputs together, and cannot be a block of Gibbs")

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        here, walk = state.position, random.standard_normal(state.position, generator)
        moved = here + self.step_size.to(walk) * walk
        proposal, back = moved.clone(), moved.clone()
        proposal[..., self.afresh] = self.law.quantile(random.uniform(here, generator))[..., self.afresh]
        back[..., self.afresh] = here[..., self.afresh]
        # ρ₂(u₂) / ρ₂(u₂'), both beside the same u₁
        log_correction = self.law.density.finite_log_prob(back) - self.law.density.finite_log_prob(proposal)
        return metropolis(self.density, state, proposal, log_correction, generator)


def abc_mcmc(
    density: Density,
    law: InputLaw,
    step_size: float | Tensor,
    latent: Sequence[str] | None = None,
) -> SimulatorMetropolis:
    """ABC-MCMC: a random walk in the inputs named `latent`, the others drawn afresh for each proposal.

    density: of `hmcvi.models.abc_density(generator, …)`; law: the same generator.  latent: all inputs but
    the last, which are taken for the noise of the simulation, if None.
    """
    names = list(law.layout.shapes)
    walking = names[:-1] if latent is None else list(latent)
    if unknown := [name for name in walking if name not in names]:
        raise ValueError(f"there are no inputs called {unknown[0]!r}, only {', '.join(names)}")
    if not walking or len(set(walking)) == len(names):
        raise ValueError(
            f"some of the inputs {', '.join(names)} must walk and some be drawn afresh, got latent={walking}"
        )
    coordinates = torch.arange(law.layout.dim)
    afresh = [coordinates[place] for name, place in law.layout.slices.items() if name not in walking]
    return SimulatorMetropolis(density, law, torch.cat(afresh), step_size)
