"""Initial states on a manifold: inputs drawn from their distribution, projected, and chosen by weight."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.internal.random import uniform
from hmcvi.kernels.constrained.manifold import Manifold
from hmcvi.kernels.constrained.projection import NewtonStep, Projector, damped_newton


class Candidates(NamedTuple):
    """Positions, found to be on the manifold or not."""

    position: Tensor  # [candidates, M]
    log_weight: Tensor  # log π/q, −∞ where not found  [candidates]
    error: Tensor  # |c(u)|_∞  [candidates]

    def keys(self, generator: torch.Generator) -> Tensor:
        """log w + G, G ~ Gumbel: the largest of some is that of each with probability ∝ w.  [candidates]"""
        return self.log_weight - (-uniform(self.log_weight, generator).log()).log()


def candidates(
    manifold: Manifold, count: int, tolerance: float, max_iterations: int, generator: torch.Generator
) -> Candidates:
    """Inputs u ~ ρ, projected within span P, P [M, N] orthonormal, and their importance weights

        log w = log ρ(u) − log ρ(u − P Pᵀ u) − log |det J P|.

    P are the inputs that belong to single outputs, if the generator has such; then w is the likelihood of the
    other inputs, p(y | u₁).  Else P is random, and w is exact for normal inputs.  Both suppose that the
    manifold has no other point within the subspace than the one that Newton's method finds.
    """
    inputs = manifold.generator.sample(count, generator=generator)
    subspace = _subspace(manifold, inputs, generator)
    moved = damped_newton(manifold, inputs, _within(subspace), tolerance, max_iterations)
    position, log_rho = moved.position, manifold.generator.density.finite_log_prob
    jacobian = manifold.linearize(position)
    log_prior = log_rho(position) - log_rho(_without(subspace, position, manifold))
    log_weight = log_prior - jacobian.log_volume_within(subspace)
    usable = moved.found & log_weight.isfinite() & jacobian.log_volume().isfinite()
    error = manifold.residual(position).abs().amax(-1)
    return Candidates(position, log_weight.where(usable, -torch.inf), error)


def choose_candidates(
    manifold: Manifold,
    num_chains: int,
    project: Projector,
    num_candidates: int,
    max_tries: int,
    generator: torch.Generator,
) -> Tensor:
    """For each chain one of `num_candidates` or more, with probability ∝ its weight.  [num_chains, M]

    A chain for which fewer are found in `max_tries` rounds chooses among those.
    """
    initial = torch.empty(num_chains, manifold.generator.dim, dtype=torch.float64)
    nearest = math.inf
    best, count = torch.full((num_chains,), -math.inf, dtype=torch.float64), torch.zeros(num_chains)
    for _ in range(max_tries):
        seeking = (count < num_candidates).nonzero()[:, 0]
        if len(seeking) == 0:
            break
        rows = seeking.repeat_interleave(num_candidates)
        drawn = candidates(
            manifold.select(rows), len(rows), project.tolerance, project.max_iterations, generator
        )
        keys, chosen = drawn.keys(generator).view(-1, num_candidates).max(-1)
        better = keys > best[seeking]
        chosen = chosen + num_candidates * torch.arange(len(seeking))
        initial[seeking[better]] = drawn.position[chosen[better]]
        best[seeking] = best[seeking].maximum(keys)
        count[seeking] += drawn.log_weight.isfinite().view(-1, num_candidates).sum(-1)
        nearest = min(nearest, float(drawn.error.nan_to_num(math.inf).min()))
    if missing := int((count == 0).sum()):
        raise ValueError(
            f"no inputs were found that give what was observed, for {missing} of {num_chains} chains in "
            f"{max_tries * num_candidates} tries; the smallest |g(u) − y| was {nearest:.2g}. Is the "
            "observation in the range of the generator? With observation noise, generator.noisy(scale), "
            "every observation is"
        )
    return initial


def relax(
    manifold: Manifold, position: Tensor, level: Tensor, project: Projector, max_iterations: int
) -> Tensor:
    """u ← u + α P ∇log ρ(u), projected on the manifold, while log ρ(u) < level [chains].  [chains, M]

    P projects on the tangent space.  α is halved where the density does not rise and doubled, to at most 1,
    where it does: of normal inputs α = 1 goes to those of least norm at which the linearised g(u) is y.
    """
    rho, size = manifold.generator.density, torch.ones_like(level)
    for _ in range(max_iterations):
        log_prob, grad = rho.finite_value_and_grad(position)
        going = log_prob < level
        if not going.any():
            break
        jacobian = manifold.linearize(position)
        moved = project(manifold, jacobian, position + size[:, None] * jacobian.project(grad), going)
        better = moved.found & (rho.finite_log_prob(moved.position) > log_prob)
        position = moved.position.where(better[:, None], position)
        size = (2 * size).clamp(max=1.0).where(better, size / 2)
    return position


def _subspace(manifold: Manifold, inputs: Tensor, generator: torch.Generator) -> Tensor:
    """P, one per candidate [candidates, M, N]; with structure empty, as P is that of the last inputs."""
    if manifold.generator.structure != "dense":
        return inputs.new_empty(*inputs.shape, 0)
    size = manifold.observed.shape[-1]
    normal = torch.randn(*inputs.shape, size, dtype=inputs.dtype, generator=generator)
    return torch.linalg.qr(normal)[0]


def _without(subspace: Tensor, position: Tensor, manifold: Manifold) -> Tensor:
    """u − P Pᵀ u  [candidates, M]"""
    if manifold.generator.structure == "dense":
        return position - (subspace @ (subspace.mT @ position[..., None]))[..., 0]
    size = manifold.observed.shape[-1]
    return torch.cat([position[..., :-size], torch.zeros_like(position[..., -size:])], -1)


def _within(subspace: Tensor) -> NewtonStep:
    return lambda jacobian, residual: jacobian.step_within(subspace, residual)
