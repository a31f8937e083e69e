"""Projection on the manifold, along the rows of a Jacobian, by Newton's method."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.kernels.constrained.jacobian import Linearization
from hmcvi.kernels.constrained.manifold import Manifold

BLOW_UP = 1e4  # growth of the residual at which an iteration is given up
HALVINGS = 6  # of a Newton step by which the residual does not fall
CROWD = 0.6  # share of unfinished chains below which the others are left out

NewtonStep = Callable[[Linearization, Tensor], Tensor]  # (J, c) -> [chains, M]


class Projection(NamedTuple):
    """Positions after a projection, and which chains it succeeded for."""

    position: Tensor  # [chains, M]
    found: Tensor  # whether on the manifold  [chains]
    num_residuals: Tensor  # evaluated on the way  [chains]


class Projector:
    """Solve c(u + Jᵀλ) = 0 for λ, J given, until |c|_∞ < tolerance.

    u ← u − Jᵀ (J Jᵀ)⁻¹ c(u)      quasi-Newton, with J of the point that was left  (4.54)
    u ← u − Jᵀ (J' Jᵀ)⁻¹ c(u)     Newton, J' = ∂c/∂u, where the first has failed: halved as needed  (4.53)
    [Graham 2018]
    """

    def __init__(self, tolerance: float, max_iterations: int) -> None:
        self.tolerance, self.max_iterations = tolerance, max_iterations

    def __call__(
        self, manifold: Manifold, jacobian: Linearization, position: Tensor, active: Tensor
    ) -> Projection:
        """Project `position` [chains, M]; chains that are not active [chains] stay and are not found."""
        first = self._quasi_newton(manifold, jacobian, position, active)
        rows = (active & ~first.found).nonzero()[:, 0]
        if len(rows) == 0:
            return first
        jacobian, manifold = jacobian.select(rows), manifold.select(rows)

        def step(here: Linearization, residual: Tensor) -> Tensor:
            return jacobian.transpose(jacobian.solve_between(here, residual))

        again = damped_newton(manifold, position[rows], step, self.tolerance, self.max_iterations)
        return Projection(
            first.position.index_copy(0, rows, again.position),
            first.found.index_copy(0, rows, again.found),
            first.num_residuals.index_add(0, rows, again.num_residuals),
        )

    def _quasi_newton(
        self, manifold: Manifold, jacobian: Linearization, start: Tensor, active: Tensor
    ) -> Projection:
        result = Projection(
            start.clone(), torch.zeros_like(active), torch.zeros_like(active, dtype=torch.int64)
        )
        rows = active.nonzero()[:, 0]
        position, limit = start, torch.full_like(start[..., 0], torch.inf)
        if len(rows) < len(active):
            position, limit, manifold, jacobian = (
                start[rows],
                limit[rows],
                manifold.select(rows),
                jacobian.select(rows),
            )
        going = torch.ones_like(rows, dtype=torch.bool)
        for _ in range(self.max_iterations):
            residual = manifold.residual(position)
            error = residual.abs().amax(-1)
            limit = (BLOW_UP * error).where(limit == torch.inf, limit)
            result.num_residuals[rows] += going
            found = going & (error < self.tolerance)
            if found.any():
                result.position[rows[found]] = position[found]
                result.found[rows[found]] = True
            going = going & (error >= self.tolerance) & (error < limit)
            if (left := int(going.sum())) == 0:
                break
            if left < CROWD * len(rows):
                kept = going.nonzero()[:, 0]
                rows, position, residual, limit = rows[kept], position[kept], residual[kept], limit[kept]
                manifold, jacobian, going = manifold.select(kept), jacobian.select(kept), going[kept]
            position = position - jacobian.lift(residual)
        return result


def damped_newton(
    manifold: Manifold, position: Tensor, step: NewtonStep, tolerance: float, max_iterations: int
) -> Projection:
    """u ← u − α step(J(u), c(u)), α halved until the residual falls; chains where it never does are given up.

    position: [chains, M]
    """
    residual = manifold.residual(position)
    error = residual.abs().amax(-1)
    count = torch.ones_like(error, dtype=torch.int64)
    for _ in range(max_iterations):
        going = error >= tolerance
        if not going.any():
            break
        direction, size = step(manifold.linearize(position), residual), torch.ones_like(error)
        for _ in range(HALVINGS):
            trial = position - size[:, None] * direction
            trial_residual = manifold.residual(trial)
            trial_error = trial_residual.abs().amax(-1)
            count = count + going
            better = going & (trial_error < error)
            if (better | ~going).all():
                break
            size = size.where(better, size / 2)
        position = trial.where(better[:, None], position)
        residual = trial_residual.where(better[:, None], residual)
        error = trial_error.where(better, error.where(~going, torch.nan))
    return Projection(position, error < tolerance, count)
