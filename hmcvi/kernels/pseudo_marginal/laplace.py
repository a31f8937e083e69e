"""Laplace's approximation: a normal distribution at the mode, of many densities at once."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.internal.newton import expansion, maximise


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
        mode = maximise(
            functools.partial(expansion, joint.value_and_grad), flat.new_zeros(len(flat), dim), max_iterations
        )
    # a Newton step at the mode leaves it where it is, but carries the derivative of the mode by `given`
    factor = torch.linalg.cholesky_ex(-hessian(flat, mode.detach())).L
    mode = mode + torch.cholesky_solve(slope(flat, mode)[..., None], factor)[..., 0]
    factor, failed = torch.linalg.cholesky_ex(-hessian(flat, mode))
    identity = torch.eye(dim, dtype=given.dtype, device=given.device).expand_as(factor)
    root = torch.linalg.solve_triangular(factor.mT, identity, upper=True)
    root = root.where((failed == 0)[:, None, None], torch.nan)
    return mode.view(*given.shape[:-1], dim), root.view(*given.shape[:-1], dim, dim)
