"""Newton's method for the maxima of many functions at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Expand = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]  # z -> value, gradient and Hessian

FIRST_DAMPING = 1e-3
TOLERANCE = 1e-9  # of Newton's decrement, half of which is the gain of a further step
ROUNDING = 8  # units in the last place of a value; smaller gains cannot be told from rounding


def maximise(expand: Expand, start: Tensor, max_iterations: int) -> Tensor:
    """The maximum uphill of `start`, NaN where none is found.  [..., d] -> [..., d]

    Newton's method on all at once, each damped until its step goes up; expand(z) gives the value [...], the
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


@torch.no_grad()
def expansion(
    value_and_grad: Callable[[Tensor], tuple[Tensor, Tensor]], position: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log γ(z) [...], ∇ log γ(z) [..., d] and ∇∇ᵀ log γ(z) [..., d, d], as they come."""
    with torch.enable_grad():
        position = position.detach().requires_grad_()
        value, grad = value_and_grad(position)
        rows = []
        for entry in grad.unbind(-1):
            row = None
            if entry.requires_grad:
                (row,) = torch.autograd.grad(entry.sum(), position, retain_graph=True, allow_unused=True)
            rows.append(torch.zeros_like(position) if row is None else row)
    return value.detach(), grad.detach(), torch.stack(rows, -2)
