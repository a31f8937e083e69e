"""The start of a chain chosen among several draws of the base."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Transform

from hmcvi.chain import Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.flows.coordinates import transport_of_base
from hmcvi.internal.context import Randomness


class Candidates(NamedTuple):
    """K positions of each chain, the first its own; all tensors [K, ...]."""

    position: Tensor  # [K, ..., d]
    log_base: Tensor  # log q0
    log_prob: Tensor  # log γ

    def potential(self, beta: Tensor) -> Tensor:
        """β (log γ − log q0), −inf and without gradient where γ = 0."""
        possible = self.log_prob > -torch.inf
        return (beta * (self.log_prob - self.log_base).where(possible, 0.0)).where(possible, -torch.inf)


class Resample(Step):
    """Choose among the position and K − 1 draws of the base, with probabilities ∝ w_k^β for w = γ/q0:

        log_ratio = log q0(z_1) − log q0(z_i) + log mean_k w_k^β − β log w_i,   P(i) = w_i^β / Σ_k w_k^β

    After draws of q0 the chosen position is nearly one of γ_β = q0^{1−β} γ^β, at the price of K densities and
    no force.  Reversed by the uniform choice of i among positions of which all but z_i were drawn from q0, so
    that E[w] = Z for whatever distribution z_1 came from.  Positions are in pairs that mirror each other
    through the centre of the base, e and −e in its coordinates: linear parts of log w cancel in the mean.
    A chain all of whose candidates have γ = 0 stays.
    [Andrieu, Doucet & Holenstein 2010, iterated sampling importance resampling; Burda et al. 2016 at β = 1]

    temperature(context) gives β, [] or one per chain [...].
    """

    uses_force = False
    uses_density = True

    def __init__(self, num_candidates: int, temperature: Callable[[Context], Tensor]) -> None:
        super().__init__()
        if num_candidates < 2 or num_candidates % 2:
            raise ValueError(
                f"candidates come in pairs: their number must be even and at least 2, got {num_candidates}"
            )
        self.num_candidates, self.temperature = num_candidates, temperature

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        context = Context.of(context)
        candidates = self._draw(state, target, context.randomness)
        beta = self.temperature(context).to(state.position)
        potential = candidates.potential(beta)
        hopeless = (potential == -torch.inf).all(0)
        potential = potential.where(~hopeless, 0.0)
        log_sum = potential.logsumexp(0)
        index = _choose((potential - log_sum).detach(), context.randomness).where(~hopeless, 0)
        log_choice = (_pick(potential, index) - log_sum).where(~hopeless, 0.0)
        moved = candidates.log_base[0] - _pick(candidates.log_base, index)
        log_ratio = (moved - math.log(self.num_candidates)) - log_choice
        log_ratio = log_ratio.where(~hopeless, 0.0)
        position = _pick(candidates.position, index)
        new = Phase(position, state.momentum, _pick(candidates.log_prob, index))
        moves = (index > 0).to(log_ratio)
        return Transition(new, log_ratio, log_choice, torch.zeros_like(log_ratio), {"moved": moves})

    def _draw(self, state: Phase, target: Density, randomness: Randomness) -> Candidates:
        transport = transport_of_base(target)
        assert target.base is not None
        own = transport.inv(state.position)
        fresh = [randomness.normal(own) for _ in range(self.num_candidates // 2 - 1)]
        others = _image(transport, torch.stack([-own, *fresh, *(-noise for noise in fresh)]))
        position = torch.cat([state.position[None], others])
        log_prob = torch.cat([state.log_density(target)[None], target.finite_log_prob(others)])
        return Candidates(position, target.base.log_prob(position), log_prob)


def _image(transport: Transform, noise: Tensor) -> Tensor:
    image: Tensor = transport(noise)
    return image


def _choose(log_probability: Tensor, randomness: Randomness) -> Tensor:
    """i with these probabilities, by inverse CDF.  [K, ...] -> [...]"""
    uniform = randomness.uniform(log_probability[0])
    return (log_probability.exp().cumsum(0)[:-1] <= uniform).sum(0)


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """Entry i of each chain.  [K, ...] or [K, ..., d] -> [...] or [..., d]"""
    index = index.view(1, *index.shape, *[1] * (values.ndim - 1 - index.ndim))
    return values.gather(0, index.expand(1, *values.shape[1:]))[0]
