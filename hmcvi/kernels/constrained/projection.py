"""Projection on the manifold, along the rows of a Jacobian, by Newton's method."""

from __future__ import annotations

import math
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


class _Search(NamedTuple):
    """Chains on the way to the manifold, of which some may have arrived."""

    rows: Tensor  # among all chains  [n]
    position: Tensor  # [n, M]
    distance: Tensor  # of a known solution  [n]
    limit: Tensor  # of the residual  [n]
    going: Tensor  # [n]
    manifold: Manifold
    jacobian: Linearization

    def select(self, kept: Tensor) -> _Search:
        """Some of them."""
        return _Search(
            self.rows[kept],
            self.position[kept],
            self.distance[kept],
            self.limit[kept],
            self.going[kept],
            self.manifold.select(kept),
            self.jacobian.select(kept),
        )

    def end(self, found: Tensor, result: Projection) -> _Search:
        """End chains that are on the manifold [n], and say so in `result`."""
        if found.any():
            result.position[self.rows[found]] = self.position[found]
            result.found[self.rows[found]] = True
        return self._replace(going=self.going & ~found)

    def check(self, error: Tensor, tolerance: float, result: Projection) -> _Search:
        """End chains whose residual is small, or has grown too much.  error: |c(u)|_∞ [n]"""
        limit = (BLOW_UP * error).where(self.limit == torch.inf, self.limit)
        new = self.end(self.going & (error < tolerance), result)
        return new._replace(limit=limit, going=new.going & (error < limit))

    def compare(self, solution: Tensor, near: float, result: Projection) -> _Search:
        """End chains that converge to `solution` [chains, M]: near it, and by now at half the distance."""
        distance = (self.position - solution[self.rows]).abs().amax(-1)
        new = self.end(self.going & (distance < near) & (2 * distance <= self.distance), result)
        return new._replace(distance=distance)


class Projector:
    """Solve c(u + Jᵀλ) = 0 for λ, J given, until |c|_∞ < tolerance.

    u ← u − Jᵀ (J Jᵀ)⁻¹ c(u)      quasi-Newton, with J of the point that was left  (4.54)
    u ← u − Jᵀ (J' Jᵀ)⁻¹ c(u)     Newton, J' = ∂c/∂u, where the first has failed: halved as needed  (4.53)
    [Graham 2018]
    """

    def __init__(self, tolerance: float, max_iterations: int) -> None:
        self.tolerance, self.max_iterations = tolerance, max_iterations

    def __call__(
        self,
        manifold: Manifold,
        jacobian: Linearization,
        position: Tensor,
        active: Tensor,
        solution: Tensor | None = None,
    ) -> Projection:
        """Project `position` [chains, M]; chains that are not active [chains] stay and are not found.

        solution: a known u + Jᵀλ on the manifold [chains, M].  The quasi-Newton iteration, of which it is a
        fixed point, ends where it is within √tolerance of it and has at least halved the distance: it would
        converge to it.
        """
        first = self._quasi_newton(manifold, jacobian, position, active, solution)
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
        self,
        manifold: Manifold,
        jacobian: Linearization,
        start: Tensor,
        active: Tensor,
        solution: Tensor | None,
    ) -> Projection:
        result = Projection(
            start.clone(), torch.zeros_like(active), torch.zeros_like(active, dtype=torch.int64)
        )
        everyone, limit = torch.arange(len(start)), torch.full_like(start[..., 0], torch.inf)
        distance = limit if solution is None else (start - solution).abs().amax(-1)
        search = _Search(everyone, start, distance, limit, active, manifold, jacobian)
        if not active.all():
            search = search.select(active.nonzero()[:, 0])
        for _ in range(self.max_iterations):
            residual = search.manifold.residual(search.position)
            result.num_residuals[search.rows] += search.going
            search = search.check(residual.abs().amax(-1), self.tolerance, result)
            if (left := int(search.going.sum())) == 0:
                break
            if left < CROWD * len(search.rows):
                kept = search.going.nonzero()[:, 0]
                search, residual = search.select(kept), residual[kept]
            search = search._replace(position=search.position - search.jacobian.lift(residual))
            if solution is not None:
                search = search.compare(solution, math.sqrt(self.tolerance), result)
                if not search.going.any():
                    break
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
