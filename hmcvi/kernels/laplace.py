"""Laplace's approximation of many densities at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

FIRST_DAMPING = 1e-3
TOLERANCE = 1e-9  # of Newton's decrement, half of which is what a further step would gain


def fit_laplace(
    log_joint: Callable[[Tensor, Tensor], Tensor], given: Tensor, dim: int, max_iterations: int = 50
) -> tuple[Tensor, Tensor]:
    """N(mode, R Rᵀ) near exp log_joint(given, ·), R Rᵀ the inverse of the negative Hessian at the mode.

    given: [..., d] -> mode [..., dim], R [..., dim, dim], upper triangular.  NaN where no mode is found.
    Differentiable in `given`.
    """
    flat = given.reshape(-1, given.shape[-1])
    gradient = torch.func.grad(log_joint, 1)
    slope, hessian = torch.func.vmap(gradient), torch.func.vmap(torch.func.jacrev(gradient, 1))
    with torch.no_grad():
        mode = _maximise(log_joint, slope, hessian, flat.detach(), dim, max_iterations)
    # one step from the mode moves it nowhere, and as far as the mode moves when `given` does
    factor = torch.linalg.cholesky_ex(-hessian(flat, mode.detach())).L
    mode = mode + torch.cholesky_solve(slope(flat, mode)[..., None], factor)[..., 0]
    factor, failed = torch.linalg.cholesky_ex(-hessian(flat, mode))
    identity = torch.eye(dim, dtype=given.dtype, device=given.device).expand_as(factor)
    root = torch.linalg.solve_triangular(factor.mT, identity, upper=True)
    root = root.where((failed == 0)[:, None, None], torch.nan)
    return mode.view(*given.shape[:-1], dim), root.view(*given.shape[:-1], dim, dim)


def _maximise(
    log_joint: Callable[[Tensor, Tensor], Tensor],
    slope: Callable[[Tensor, Tensor], Tensor],
    hessian: Callable[[Tensor, Tensor], Tensor],
    given: Tensor,
    dim: int,
    max_iterations: int,
) -> Tensor:
    """Newton's method, damped where a step does not go up.  [chains, d] -> [chains, dim], or NaN."""
    position = given.new_zeros(len(given), dim)
    damping = given.new_zeros(len(given), 1, 1)
    identity = torch.eye(dim, dtype=given.dtype, device=given.device)
    value, done = log_joint(given, position), torch.zeros(len(given), dtype=torch.bool, device=given.device)
    for _ in range(max_iterations):
        gradient, curvature = slope(given, position), -hessian(given, position)
        scale = curvature.diagonal(dim1=-2, dim2=-1).abs().mean(-1)[:, None, None]
        factor, failed = torch.linalg.cholesky_ex(curvature + damping * scale * identity)
        step = torch.cholesky_solve(gradient[..., None], factor)[..., 0]
        decrement = (gradient * step).sum(-1)
        done = done | ((failed == 0) & (damping[:, 0, 0] == 0) & (decrement < TOLERANCE))
        if done.all():
            break
        proposed = position + step
        new = log_joint(given, proposed)
        better = ~done & (failed == 0) & (new >= value)
        position, value = proposed.where(better[:, None], position), new.where(better, value)
        eased = (damping / 10).where(damping > FIRST_DAMPING, 0.0)
        damping = eased.where(better[:, None, None], (10 * damping).clamp(min=FIRST_DAMPING))
    return position.where(done[:, None], torch.nan)
