"""Metropolis–Hastings with proposals that need no gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.metrics import IdentityMetric, Metric
from hmcvi.internal import random
from hmcvi.internal.checks import positive
from hmcvi.kernels.mcmc.kernel import Info, Kernel


class Proposal(Protocol):
    """What a torch or Pyro distribution over vectors offers."""

    @property
    def batch_shape(self) -> torch.Size: ...

    @property
    def event_shape(self) -> torch.Size: ...

    def sample(self, sample_shape: torch.Size = ...) -> Tensor: ...

    def log_prob(self, value: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class RandomWalkMetropolis(Kernel):
    """z' = z + ε L⁻ᵀ n ~ N(z, ε² M⁻¹), accepted with probability min(1, γ(z') / γ(z)).

    step_size: ε, a number, [d] or one per chain [..., 1].  metric: M = L Lᵀ, an estimate of the inverse
    covariance of the target; the identity if None.  [Graham 2018, algorithm 2]

    >>> kernel = RandomWalkMetropolis(Density(lambda z: -0.5 * z.square().sum(-1)), step_size=1.0)
    >>> state, info = kernel.step(kernel.init(torch.zeros(3, 2)), torch.Generator().manual_seed(0))
    >>> state.position.shape, sorted(info)
    (torch.Size([3, 2]), ['acceptance_rate', 'accepted', 'num_evaluations'])
    """

    density: Density
    step_size: float | Tensor = 0.1
    metric: Metric = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", positive(self.step_size, "step_size"))
        if self.metric is None:
            object.__setattr__(self, "metric", IdentityMetric())

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        displacement = self.metric.whiten_transposed(random.standard_normal(state.position, generator))
        proposal = state.position + torch.as_tensor(self.step_size).to(displacement) * displacement
        return metropolis(self.density, state, proposal, 0.0, generator)


@dataclass(frozen=True, eq=False)
class IndependentMetropolis(Kernel):
    """z' ~ q, accepted with probability min(1, γ(z') q(z) / (γ(z) q(z'))).

    proposal: q, a torch or Pyro distribution over vectors (event shape [d]), its batch shape empty or that
    of the last dimensions of the chains.  It should have heavier tails than γ.  [Graham 2018, algorithm 2]

    >>> q = torch.distributions.MultivariateNormal(torch.zeros(2), 2 * torch.eye(2))
    >>> kernel = IndependentMetropolis(Density(lambda z: -0.5 * z.square().sum(-1)), q)
    >>> kernel.step(kernel.init(torch.zeros(3, 2)), torch.Generator().manual_seed(0))[0].position.shape
    torch.Size([3, 2])
    """

    density: Density
    proposal: Proposal

    def __post_init__(self) -> None:
        if len(self.proposal.event_shape) != 1:
            raise ValueError(
                f"the proposal must be a distribution over vectors, its event shape is "
                f"{list(self.proposal.event_shape)}: make coordinates into one event with "
                "torch.distributions.Independent(proposal, 1)"
            )

    def init(self, position: Tensor) -> Phase:
        dim, batch, own = position.shape[-1], position.shape[:-1], self.proposal.batch_shape
        if self.proposal.event_shape[0] != dim:
            raise ValueError(f"positions have {dim} dimensions, the proposal {self.proposal.event_shape[0]}")
        if own != batch[len(batch) - len(own) :]:
            raise ValueError(
                f"the proposal's batch shape {list(own)} must be empty or the last dimensions of the chains "
                f"{list(batch)}"
            )
        state: Phase = super().init(position)
        log_proposal = self.proposal.log_prob(state.position)
        if (log_proposal.dtype, log_proposal.device) != (position.dtype, position.device):
            raise ValueError(
                f"positions are {position.dtype} on {position.device}, the proposal is {log_proposal.dtype} "
                f"on {log_proposal.device}: give both the same dtype and device"
            )
        return state

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        proposal = random.draw_from(self.proposal, state.position, generator)
        log_correction = self.proposal.log_prob(state.position) - self.proposal.log_prob(proposal)
        return metropolis(self.density, state, proposal, log_correction, generator)


def metropolis(
    density: Density,
    state: Phase,
    proposal: Tensor,
    log_correction: Tensor | float,
    generator: torch.Generator | None,
) -> tuple[Phase, Info]:
    """Accept with probability min(1, e^r), r = log γ(z') − log γ(z) + log_correction.

    A chain without density, γ(z) = 0, stays: no later weight could tell that it had been there.
    """
    old, new = state.log_density(density), density.finite_log_prob(proposal)
    log_ratio = new - old + log_correction
    rate = log_ratio.clamp(max=0).exp().where((old > -torch.inf) & ~log_ratio.isnan(), 0.0)
    accepted = random.uniform(rate, generator) < rate
    moved = state._replace(
        position=proposal.where(accepted[..., None], state.position),
        log_prob=new.where(accepted, old),
        grad=None,
    )
    info = {
        "accepted": accepted,
        "acceptance_rate": rate,
        "num_evaluations": torch.ones_like(accepted, dtype=torch.int64),
    }
    return moved, info
