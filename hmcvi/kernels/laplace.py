"""Laplace's approximation of many densities at once, and the Newton method that finds their modes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hmcvi.density import Density

Expand = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]

FIRST_DAMPING = 1e-3
TOLERANCE = 1e-9  # of Newton's decrement, half of which is what a further step would gain
ROUNDING = 8  # units in the last place of a value, less than which no step can be seen to gain


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
        joint = Density(lambda z: log_joint(flat.detach(), z))
        mode = maximise(joint.value_grad_and_hessian, flat.new_zeros(len(flat), dim), max_iterations)
    # one step from the mode moves it nowhere, and as far as the mode moves when `given` does
    factor = torch.linalg.cholesky_ex(-hessian(flat, mode.detach())).L
    mode = mode + torch.cholesky_solve(slope(flat, mode)[..., None], factor)[..., 0]
    factor, failed = torch.linalg.cholesky_ex(-hessian(flat, mode))
    identity = torch.eye(dim, dtype=given.dtype, device=given.device).expand_as(factor)
    root = torch.linalg.solve_triangular(factor.mT, identity, upper=True)
    root = root.where((failed == 0)[:, None, None], torch.nan)
    return mode.view(*given.shape[:-1], dim), root.view(*given.shape[:-1], dim, dim)


def maximise(expand: Expand, start: Tensor, max_iterations: int) -> Tensor:
    """The maximum uphill of `start`, NaN where none is found.  [..., d] -> [..., d]

    Newton's method on all at once, each damped until its step goes up; expand(z) has the value [...], the
    gradient [..., d] and the Hessian [..., d, d] at z.  [Nocedal & Wright 2006, §3.4 and algorithm 4.1]
    """
    position, (value, gradient, hessian) = start, expand(start)
    damping, done = torch.zeros_like(value), torch.zeros_like(value, dtype=torch.bool)
    identity = torch.eye(start.shape[-1], dtype=start.dtype, device=start.device)
    for _ in range(max_iterations):
        scale = damping * hessian.diagonal(dim1=-2, dim2=-1).abs().mean(-1)
        factor, failed = torch.linalg.cholesky_ex(scale[..., None, None] * identity - hessian)
        step = torch.cholesky_solve(gradient[..., None], factor)[..., 0]
        decrement, rounding = (gradient * step).sum(-1), ROUNDING * torch.finfo(value.dtype).eps * value.abs()
        done |= (failed == 0) & (damping == 0) & (decrement < TOLERANCE + rounding)
        if done.all():
            break
        new_value, new_gradient, new_hessian = expand(position + step)
        up = ~done & (failed == 0) & (new_value >= value)
        position = (position + step).where(up[..., None], position)
        gradient = new_gradient.where(up[..., None], gradient)
        value, hessian = new_value.where(up, value), new_hessian.where(up[..., None, None], hessian)
        eased = (damping / 10).where(damping > FIRST_DAMPING, 0.0)
        damping = eased.where(up, (10 * damping).clamp(min=FIRST_DAMPING))
    return position.where(done[..., None], torch.nan)
