"""Hamiltonian mechanics with a mass that depends on the position.

H(z, p) = −log γ(z) + ½ pᵀG(z)⁻¹p + ½ log|G(z)|,   p | z ~ N(0, G(z))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.internal.checks import positive
from hmcvi.internal.random import standard_normal


@dataclass(frozen=True, eq=False)
class GaussNewtonMetric:
    """G(z) = I + JᵀJ/ε², J = ∂f/∂z: I is the curvature of a standard normal prior, JᵀJ/ε² of N(f(z), ε² I).

    function: f from positions [..., d] to outputs [..., n].  Solutions and determinants are those of the
    n × n matrix S = ε² I + JJᵀ:

        G⁻¹p = p − JᵀS⁻¹Jp,   log|G| = log|S| − 2 n log ε.
    """

    function: Callable[[Tensor], Tensor]
    epsilon: float | Tensor

    def __post_init__(self) -> None:
        positive(self.epsilon, "epsilon")

    def at(self, position: Tensor, differentiable: bool = False) -> LocalMetric:
        """G at a position [..., d], for forces if `differentiable`."""
        with torch.enable_grad():
            place = position.detach().requires_grad_()
            outputs = self.function(place)
            rows = [_row(outputs[..., i], place, differentiable) for i in range(outputs.shape[-1])]
            jacobian = torch.stack(rows, -2)
            with torch.set_grad_enabled(differentiable):
                epsilon = torch.as_tensor(self.epsilon).to(jacobian)
                gram = jacobian @ jacobian.mT + epsilon.square() * torch.eye(len(rows)).to(jacobian)
                root, _ = torch.linalg.cholesky_ex(gram)  # a chain that fails has none, others go on
        return LocalMetric(place, jacobian, root, epsilon)


class LocalMetric(NamedTuple):
    """G(z) of a `GaussNewtonMetric` at one position."""

    position: Tensor
    jacobian: Tensor  # [..., n, d]
    root: Tensor  # S = root rootᵀ  [..., n, n]
    epsilon: Tensor

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """p = n + Jᵀm/ε, n and m standard normal.  [..., d]"""
        first = standard_normal(self.position.detach(), generator)
        second = standard_normal(self.jacobian[..., 0].detach(), generator)
        return first + (self.jacobian.mT @ second[..., None])[..., 0].detach() / self.epsilon

    def velocity(self, momentum: Tensor) -> Tensor:
        """G⁻¹p  [..., d]"""
        image = self.jacobian.detach() @ momentum[..., None]
        solved = torch.cholesky_solve(image, self.root.detach())
        return momentum - (self.jacobian.detach().mT @ solved)[..., 0]

    def energy(self, momentum: Tensor) -> Tensor:
        """½ pᵀG⁻¹p + ½ log|G|  [...]"""
        image = torch.linalg.solve_triangular(self.root, self.jacobian @ momentum[..., None], upper=False)
        quadratic = momentum.square().sum(-1) - image.square().sum((-2, -1))
        log_det = (self.root.diagonal(dim1=-2, dim2=-1) / self.epsilon).log().sum(-1)
        return 0.5 * quadratic + log_det

    def energy_grad(self, momentum: Tensor) -> Tensor:
        """Its derivative by z, p held fixed.  [..., d]"""
        with torch.enable_grad():
            total = self.energy(momentum).sum() + 0 * self.position.sum()
            (grad,) = torch.autograd.grad(total, self.position, retain_graph=True)
        return grad


class Point(NamedTuple):
    """A position with all that steps need to know of it."""

    position: Tensor
    log_prob: Tensor
    grad: Tensor
    metric: LocalMetric

    def force(self, momentum: Tensor) -> Tensor:
        """−∂H/∂z  [..., d]"""
        return self.grad - self.metric.energy_grad(momentum)

    def energy(self, momentum: Tensor) -> Tensor:
        """H(z, p)  [...]"""
        return self.metric.energy(momentum).detach() - self.log_prob


class Solution(NamedTuple):
    """Of a fixed-point equation, by chains."""

    value: Tensor
    converged: Tensor  # [...]
    num_iterations: Tensor  # [...]


@dataclass(frozen=True, eq=False)
class GeneralisedLeapfrog:
    """One step of the implicit, reversible and symplectic integrator of non-separable Hamiltonians:

        p½ = p − ε/2 ∂_z H(z, p½)
        z' = z + ε/2 (∂_p H(z, p½) + ∂_p H(z', p½))
        p' = p½ − ε/2 ∂_z H(z', p½)

    The equations for p½ and z' are solved by fixed-point iteration, in which chains that have converged wait.
    A chain fails that does not converge, or that does not come back to z when the step is taken backwards.
    tolerance: of positions and momenta, relative to 1 + |value|; None: the root of the machine precision.
    [Leimkuhler & Reich 2004, §4.3; Girolami & Calderhead 2011]
    """

    density: Density
    metric: GaussNewtonMetric
    max_iterations: int = 50
    tolerance: float | None = None

    @torch.no_grad()
    def at(self, position: Tensor) -> Point:
        """The point at a position [..., d], by one gradient of log γ and one Jacobian."""
        return self.known(position, *self.density.finite_value_and_grad(position))

    def known(self, position: Tensor, log_prob: Tensor, grad: Tensor) -> Point:
        """The same where log γ and its gradient are known."""
        return Point(position, log_prob, grad, self.metric.at(position, differentiable=True))

    @torch.no_grad()
    def step(self, start: Point, momentum: Tensor, step_size: Tensor) -> tuple[Point, Tensor, Tensor, Tensor]:
        """The next point, its momentum, which chains succeeded [...], and Jacobians evaluated [...]."""
        middle = self._half_kick(start, momentum, step_size)
        moved = self._drift(start, middle.value, step_size)
        end = self.at(moved.value)
        new = middle.value + 0.5 * step_size * end.force(middle.value)
        back = self._half_kick(end, -new, step_size)
        returned = self._drift(end, back.value, step_size)
        near = self._close(returned.value, start.position, 100.0)
        solved = [solution.converged for solution in (middle, moved, back, returned)]
        count = moved.num_iterations + returned.num_iterations + 1
        return end, new, torch.stack([*solved, near]).all(0), count

    def _half_kick(self, point: Point, momentum: Tensor, step_size: Tensor) -> Solution:
        return self._solve(lambda p: momentum + 0.5 * step_size * point.force(p), momentum)

    def _drift(self, point: Point, momentum: Tensor, step_size: Tensor) -> Solution:
        velocity = point.metric.velocity(momentum)

        def moved(z: Tensor) -> Tensor:
            return point.position + 0.5 * step_size * (velocity + self.metric.at(z).velocity(momentum))

        return self._solve(moved, point.position)

    def _solve(self, update: Callable[[Tensor], Tensor], value: Tensor) -> Solution:
        """x = update(x), from `value`."""
        converged = torch.zeros_like(value[..., 0], dtype=torch.bool)
        count = torch.zeros_like(converged, dtype=torch.int64)
        for _ in range(self.max_iterations):
            new = update(value)
            count += ~converged
            moves = ~converged & new.isfinite().all(-1)
            near = self._close(new, value, 1.0)
            value = new.where(moves[..., None], value)
            converged = converged | (moves & near)
            if converged.all():
                break
        return Solution(value, converged, count)

    def _close(self, value: Tensor, other: Tensor, factor: float) -> Tensor:
        """Whether two vectors of each chain are the same to `factor` times the tolerance.  [...]"""
        tolerance = torch.finfo(value.dtype).eps ** 0.5 if self.tolerance is None else self.tolerance
        return ((value - other).abs() <= factor * tolerance * (1 + other.abs())).all(-1)


def _row(output: Tensor, position: Tensor, differentiable: bool) -> Tensor:
    """The gradient of one output of each chain.  [...] -> [..., d]"""
    if not output.requires_grad:
        return torch.zeros_like(position)
    (row,) = torch.autograd.grad(
        output.sum(), position, retain_graph=True, create_graph=differentiable, allow_unused=True
    )
    return torch.zeros_like(position) if row is None else row
