"""First positions on a fibre: inputs drawn from their law, moved to it, and chosen by their weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.internal import random
from hmcvi.kernels.constrained.manifold import Fibre
from hmcvi.kernels.constrained.projection import NewtonStep, Projector, newton


class Candidates(NamedTuple):
    """Positions, found to be on the fibre or not."""

    position: Tensor  # [candidates, M]
    log_weight: Tensor  # log π/q, −∞ where not found  [candidates]
    error: Tensor  # |c(u)|_∞  [candidates]

    def keys(self, generator: torch.Generator) -> Tensor:
        """log w + G, G ~ Gumbel: the largest of some is that of each with probability ∝ w.  [candidates]"""
        return self.log_weight - (-random.uniform(self.log_weight, generator).log()).log()


def candidates(
    fibre: Fibre, count: int, tolerance: float, max_iterations: int, generator: torch.Generator
) -> Candidates:
    """Inputs u ~ ρ, moved to the fibre within span P, P [M, N] orthonormal, and their importance weights

        log w = log ρ(u) − log ρ(u − P Pᵀ u) − log |det J P|.

    P are the inputs that belong to single outputs, if the generator has such; then w is the likelihood of the
    other inputs, p(y | u₁).  Else P is random, and w is exact for normal inputs.  Both suppose that Newton's
    method finds the only point of the fibre there is within the subspace.
    """
    start = fibre.generator.sample(count, generator=generator)
    subspace = _subspace(fibre, start, generator)
    moved = newton(fibre, start, _within(subspace), tolerance, max_iterations)
    position, rho = moved.position, fibre.generator.density.finite_log_prob
    geometry = fibre.linearize(position)
    log_weight = (
        rho(position) - rho(_without(subspace, position, fibre)) - geometry.log_volume_within(subspace)
    )
    usable = moved.found & log_weight.isfinite() & geometry.log_volume().isfinite()
    error = fibre.residual(position).abs().amax(-1)
    return Candidates(position, log_weight.where(usable, -torch.inf), error)


def relax(fibre: Fibre, position: Tensor, level: Tensor, project: Projector, max_iterations: int) -> Tensor:
    """u ← u + α P ∇log ρ(u) and back to the fibre, while log ρ(u) < level [chains].  [chains, M]

    P projects on the tangent space.  α is halved where the density does not rise and doubled, to at most 1,
    where it does: of normal inputs α = 1 goes to those of least norm at which the linearised g(u) is y.
    """
    rho, size = fibre.generator.density, torch.ones_like(level)
    for _ in range(max_iterations):
        log_prob, grad = rho.finite_value_and_grad(position)
        going = log_prob < level
        if not going.any():
            break
        geometry = fibre.linearize(position)
        moved = project(fibre, geometry, position + size[:, None] * geometry.project(grad), going)
        better = moved.found & (rho.finite_log_prob(moved.position) > log_prob)
        position = moved.position.where(better[:, None], position)
        size = (2 * size).clamp(max=1.0).where(better, size / 2)
    return position


def _subspace(fibre: Fibre, start: Tensor, generator: torch.Generator) -> Tensor:
    """P, one per candidate [candidates, M, N]; with structure empty, it is that of the last inputs."""
    if fibre.generator.structure != "dense":
        return start.new_empty(*start.shape, 0)
    size = fibre.observed.shape[-1]
    normal = torch.randn(*start.shape, size, dtype=start.dtype, generator=generator)
    return torch.linalg.qr(normal)[0]


def _without(subspace: Tensor, position: Tensor, fibre: Fibre) -> Tensor:
    """u − P Pᵀ u  [candidates, M]"""
    if fibre.generator.structure == "dense":
        return position - (subspace @ (subspace.mT @ position[..., None]))[..., 0]
    size = fibre.observed.shape[-1]
    return torch.cat([position[..., :-size], torch.zeros_like(position[..., -size:])], -1)


def _within(subspace: Tensor) -> NewtonStep:
    return lambda geometry, residual: geometry.step_within(subspace, residual)
