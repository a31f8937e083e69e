"""Partial non-centring, learned from draws and gradients where scales depend on other coordinates."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hmcvi.adaptation.fisher import FisherMoments
from hmcvi.adaptation.low_rank import LowRank
from hmcvi.adaptation.parents import STRONG, allowed, deviations, location_parents, scale_parents
from hmcvi.dynamics.noncentring import Noncentring

LEAST, PER_DIMENSION = 200, 4  # draws, in all and for each dimension
MOST_DIM, MOST_ROWS = 150, 2000
SMALLEST = 0.4  # of the draws, those where scales are smallest, show the slopes
BETTER = 0.7  # of the Fisher divergence, at most, is to be left
ITERATIONS, PRECISION = 40, 1e-6


class NoncentringSearch:
    """Keeps the draws of a window, to learn coordinates from them if these are needed."""

    def __init__(self) -> None:
        self._positions: list[Tensor] = []
        self._grads: list[Tensor] = []

    def add(self, position: Tensor, grad: Tensor) -> None:
        """Draws [chains, d] with their gradients."""
        if position.shape[-1] <= MOST_DIM:
            self._positions.append(position)
            self._grads.append(grad)

    def learn(self, dense: bool | None, like: Tensor) -> tuple[Noncentring, Tensor | LowRank] | None:
        """Coordinates in the dtype of `like`, and the covariance of the draws in them, if both are found."""
        if not self._positions:
            return None
        position, grad = torch.cat(self._positions).double(), torch.cat(self._grads).double()
        found = learn_noncentring(position, grad)
        if found is None:
            return None
        moments = FisherMoments(dense)
        moments.add(found.to_reference(position), found.pull_back(position, grad))
        covariance = moments.covariance()
        return None if covariance is None else (found.to(like), covariance)


def learn_noncentring(position: Tensor, grad: Tensor) -> Noncentring | None:
    """Coordinates in which draws [n, d] with gradients [n, d] look most like those of a normal distribution.

    Given the parents, the slopes of each coordinate minimise the Fisher divergence from N(0, 1),

        E (e^s g_i + e^{−s} (z_i − m))²,   s = s_i + a_i·w,   m = c_i + b_i·w,

    which is zero where z_i is normal given the others, wherever the draws come from.  It is taken over the
    draws with the smallest scales: steps are too long there, and a scale that the data bound from above has
    a slope, on average over all places, that is too small for the neck.
    None where there are too few draws, or no scale depends on another coordinate.
    """
    every = max(1, -(-len(position) // MOST_ROWS))
    position, grad = position[::every], grad[::every]
    count, dim = position.shape
    if dim > MOST_DIM or count < max(LEAST, PER_DIMENSION * dim):
        return None
    middle, unit, slope = position.mean(0), position.std(0), grad.std(0)
    if not ((unit > 1e-100) & (unit < 1e100) & (slope > 1e-100) & (slope < 1e100)).all():
        return None
    z, g = (position - middle) / unit, grad * unit
    parents, slopes = scale_parents(z, g)
    if not parents:
        return None
    children = (slopes.abs() > STRONG / 2).any(-1).nonzero()[:, 0].tolist()
    log_scale = -g.abs().clamp(min=1e-100).log().mean(0) - deviations(z)[:, parents] @ slopes.mT
    others = location_parents(parents, children, z, g, log_scale)
    size = log_scale[:, children].mean(1)
    low = size <= size.quantile(SMALLEST)
    found = _with_slopes(z[low], g[low], parents, others, children, log_scale[low])
    return None if found is None else _in_units(found, middle, unit)


def _with_slopes(
    z: Tensor, g: Tensor, parents: list[int], others: list[int], children: list[int], log_scale: Tensor
) -> Noncentring | None:
    """Slopes of the children, where these bring them much nearer to N(0, 1); the others have none."""
    every, dim = [*parents, *others], z.shape[1]
    design = torch.cat([torch.ones_like(z[:, :1]), z[:, every]], 1)
    by_location = torch.cat([torch.ones(dim, 1, dtype=z.dtype), allowed(every, dim)], 1)
    by_scale = by_location.clone()
    by_scale[:, 1 + len(parents) :] = 0.0
    free = torch.cat([by_scale, by_location], 1)[children]
    start = torch.linalg.lstsq(design, log_scale[:, children]).solution.mT
    start = torch.cat([start, torch.zeros_like(start)], 1)
    own = torch.cat([-0.5 * g.std(0).log()[:, None], z.new_zeros(dim, 2 * len(every) + 1)], 1)
    before = _residual(own[children], z[:, children], g[:, children], design)[0].square().mean(0)
    values, after = least_divergence(z[:, children], g[:, children], design, free, start)
    if not (after / before).log().mean() < math.log(BETTER):
        return None
    own[children] = values
    log_size, location = own.chunk(2, -1)
    return Noncentring(torch.tensor(every), location[:, 0], location[:, 1:], log_size[:, 0], log_size[:, 1:])


def least_divergence(
    z: Tensor, g: Tensor, design: Tensor, free: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """(s_i, a_i, c_i, b_i) of least Fisher divergence, by the method of Levenberg and Marquardt.

    z, g: [n, k]; design (1, w): [n, 1 + r]; free: one for values to be found, zero for others, which stay
    zero; start, free -> values: [k, 2 (1 + r)], and what is left of the divergence [k].
    """
    values, damping = start * free, torch.full_like(z[0], 1e-3)
    for _ in range(ITERATIONS):
        residual, by_scale, by_location = _residual(values, z, g, design)
        loss = residual.square().mean(0)
        parts = (part.mT[..., None] * design for part in (by_scale, by_location))
        jacobian = torch.cat(list(parts), -1) * free[:, None]
        normal = jacobian.mT @ jacobian / len(z)
        ridge = damping[:, None] * normal.diagonal(dim1=-2, dim2=-1) + (1 - free) + 1e-10
        slope = (jacobian * residual.mT[..., None]).mean(1)
        trial = values - torch.linalg.solve(normal + torch.diag_embed(ridge), slope)
        gain = loss - _residual(trial, z, g, design)[0].square().mean(0)
        better = gain > 0
        values = torch.where(better[:, None], trial, values)
        damping = torch.where(better, damping / 4, damping * 6).clamp(1e-9, 1e9)
        if torch.where(better, gain < PRECISION * loss, damping > 1e3).all():
            break
    return values, _residual(values, z, g, design)[0].square().mean(0)


def _residual(values: Tensor, z: Tensor, g: Tensor, design: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """e^s g + e^{−s} (z − m), and its derivatives by s and by m.  [n, k]"""
    log_scale, location = (design @ half.mT for half in values.chunk(2, -1))
    scale = log_scale.exp()
    gap = (z - location) / scale
    return scale * g + gap, scale * g - gap, -1 / scale


def _in_units(found: Noncentring, middle: Tensor, unit: Tensor) -> Noncentring:
    """The same of middle + unit · z."""
    own_middle, own_unit = middle[found.parents], unit[found.parents]
    by_location = unit[:, None] * found.by_location / own_unit
    by_scale = found.by_scale / own_unit
    location = middle + unit * found.location - by_location @ own_middle
    log_scale = found.log_scale + unit.log() - by_scale @ own_middle
    return Noncentring(found.parents, location, by_location, log_scale, by_scale)
