"""Partial non-centring, learned from draws and gradients where scales depend on other coordinates."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hmcvi.adaptation.fisher import FisherMoments
from hmcvi.adaptation.low_rank import LowRank
from hmcvi.adaptation.parents import STRONG, allowed, deviations, location_parents, scale_parents
from hmcvi.dynamics.noncentring import Noncentring, bounded
from hmcvi.internal.linalg import geometric_mean

LEAST, PER_DIMENSION = 200, 4  # draws, in all and for each dimension
MOST_DIM, MOST_ROWS = 150, 2000
SMALLEST = 0.4  # of the draws, those where scales are smallest, show slopes without bounds
LARGE = 0.8  # of the draws have smaller scales than the first guess of a bound
BETTER = 0.7  # of the Fisher divergence of a coordinate, at most, is to be left
NEARER = 0.2  # the same of all coordinates together
ITERATIONS, PRECISION = 40, 1e-6
LOG_OF_NORMAL = -0.6352  # E log|n| of n ~ N(0, 1)


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
        reference, pulled = found.to_reference(position), found.pull_back(position, grad)
        if not distance_from_normal(reference, pulled) < NEARER * distance_from_normal(position, grad):
            return None
        moments = FisherMoments(dense)
        moments.add(reference, pulled)
        covariance = moments.covariance()
        return None if covariance is None else (found.to(like), covariance)


def distance_from_normal(position: Tensor, grad: Tensor) -> float:
    """Fisher divergence of draws [n, d] from the nearest normal distribution, in its units; ∞ without one.

    E ‖L⁻¹(z − μ) + Lᵀ g‖² is least for the geometric mean Σ = LLᵀ of the covariance of the draws and the
    inverse of that of the gradients, at which it is 2 tr(Σ⁻¹ Cov z) − 2d, with E zᵀg = −d of draws of γ.
    """
    unit = position.std(0)
    z, g = (position - position.mean(0)) / unit, grad * unit
    positions, grads = z.mT @ z / len(z), g.mT @ g / len(g)
    if not (positions.isfinite().all() and grads.isfinite().all()):
        return math.inf
    try:
        nearest = geometric_mean(positions, grads)
        return 2 * float(torch.linalg.solve(nearest, positions).trace()) - 2 * z.shape[1]
    except torch.linalg.LinAlgError:
        return math.inf


def learn_noncentring(position: Tensor, grad: Tensor) -> Noncentring | None:
    """Coordinates in which draws [n, d] with gradients [n, d] look most like those of a normal distribution.

    Given the parents, the slopes of each coordinate minimise the Fisher divergence from N(0, 1),

        E (e^ℓ g_i + e^{−ℓ} (z_i − m_i))²,   ℓ and m as in `Noncentring`,

    which is zero where z_i is normal given the others, wherever the draws come from.  Slopes are first found
    without a bound, from the draws with the smallest scales: steps are too long there.  From all draws they
    are then found together with a bound, which is kept where it explains them much better.
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
    log_size = g.abs().clamp(min=1e-100).log().mean(0) - LOG_OF_NORMAL
    log_scale = -log_size - deviations(z)[:, parents] @ slopes.mT
    others = location_parents(parents, children, z, g, log_scale)
    children = [i for i in children if i not in others]  # free to move once their own children are standard
    size = log_scale[:, children].mean(1)
    low = size <= size.quantile(SMALLEST)
    found = _with_slopes(z, g, low, parents, others, children, log_scale)
    return None if found is None else _in_units(found, middle, unit)


def _with_slopes(
    z: Tensor,
    g: Tensor,
    low: Tensor,
    parents: list[int],
    others: list[int],
    children: list[int],
    log_scale: Tensor,
) -> Noncentring | None:
    """Slopes of the children, where these bring them much nearer to N(0, 1); the others have none.

    low: whether a draw is one of those with the smallest scales [n].
    """
    every, dim, width = [*parents, *others], z.shape[1], 1 + len(parents) + len(others)
    design = torch.cat([torch.ones_like(z[:, :1]), z[:, every]], 1)
    by_location = torch.cat([torch.ones(dim, 1, dtype=z.dtype), allowed(every, dim)], 1)
    by_scale = by_location.clone()
    by_scale[:, 1 + len(parents) :] = 0.0
    slopes = torch.cat([by_scale, by_location, z.new_zeros(dim, 2)], 1)[children]
    constant = torch.cat([-0.5 * g[low].std(0).log()[:, None], z.new_zeros(dim, 2 * width + 1)], 1)
    constant[:, -2] = torch.inf  # bounds
    z, g, log_scale, start = z[:, children], g[:, children], log_scale[:, children], constant[children]

    guess = torch.linalg.lstsq(design[low], log_scale[low]).solution.mT * slopes[:, :width]
    unbounded = torch.cat([guess, start[:, width:]], 1)
    unbounded = least_divergence(z[low], g[low], design[low], slopes, unbounded)
    with_bounds = unbounded.clone()
    with_bounds[:, -2] = log_scale.quantile(LARGE, 0)
    with_bounds = least_divergence(
        z, g, design, torch.cat([slopes[:, :-2], torch.ones_like(slopes[:, :2])], 1), with_bounds
    )
    much_better = _divergence(with_bounds, z, g, design) < BETTER * _divergence(unbounded, z, g, design)
    values = torch.where(much_better[:, None], with_bounds, unbounded)

    before, after = (_divergence(each, z[low], g[low], design[low]) for each in (start, values))
    if not (after / before).log().mean() < math.log(BETTER):
        return None
    constant[children] = values
    (log_size, location), (bound, anchor) = constant[:, :-2].chunk(2, -1), constant[:, -2:].mT
    return Noncentring(
        torch.tensor(every), location[:, 0], location[:, 1:], log_size[:, 0], log_size[:, 1:], bound, anchor
    )


def least_divergence(z: Tensor, g: Tensor, design: Tensor, free: Tensor, start: Tensor) -> Tensor:
    """(s_i, a_i, c_i, b_i, q_i, f_i) of least Fisher divergence, by the method of Levenberg and Marquardt.

    z, g: [n, k]; design (1, w): [n, 1 + r]; free: one for values to be found, zero for others, which stay as
    they are; start, free -> values: [k, 2 (1 + r) + 2].
    """
    values, damping = start, torch.full_like(z[0], 1e-3)
    for _ in range(ITERATIONS):
        residual, *slopes = _residual(values, z, g, design)
        loss = residual.square().mean(0)
        by_scale, by_location, by_bound, by_anchor = (part.mT[..., None] for part in slopes)
        parts = [by_scale * design, by_location * design, by_bound, by_anchor]
        jacobian = torch.cat(parts, -1) * free[:, None]
        normal = jacobian.mT @ jacobian / len(z)
        ridge = damping[:, None] * normal.diagonal(dim1=-2, dim2=-1) + (1 - free) + 1e-10
        slope = (jacobian * residual.mT[..., None]).mean(1)
        trial = values - torch.linalg.solve(normal + torch.diag_embed(ridge), slope)
        gain = loss - _divergence(trial, z, g, design)
        better = gain > 0
        values = torch.where(better[:, None], trial, values)
        damping = torch.where(better, damping / 4, damping * 6).clamp(1e-9, 1e9)
        if torch.where(better, gain < PRECISION * loss, damping > 1e3).all():
            break
    return values


def _divergence(values: Tensor, z: Tensor, g: Tensor, design: Tensor) -> Tensor:
    """From N(0, 1)  [k]"""
    return _residual(values, z, g, design)[0].square().mean(0)


def _residual(values: Tensor, z: Tensor, g: Tensor, design: Tensor) -> tuple[Tensor, ...]:
    """e^ℓ g + e^{−ℓ} (z − m), and its derivatives by s + a·w, c + b·w, q and f.  [n, k]"""
    log_free, free = (design @ half.mT for half in values[:, :-2].chunk(2, -1))
    bound, anchor = values[:, -2], values[:, -1]
    location, log_scale, share = bounded(free, log_free, bound, anchor)
    scale = log_scale.exp()
    gap = (z - location) / scale
    by_size, by_location = scale * g - gap, -1 / scale
    turn = 2 * share * (1 - share) * (free - anchor) * by_location
    return (
        scale * g + gap,
        share * by_size - turn,
        share * by_location,
        (1 - share) * by_size + turn,
        (1 - share) * by_location,
    )


def _in_units(found: Noncentring, middle: Tensor, unit: Tensor) -> Noncentring:
    """The same of middle + unit · z."""
    own_middle, own_unit = middle[found.parents], unit[found.parents]
    by_location = unit[:, None] * found.by_location / own_unit
    by_scale = found.by_scale / own_unit
    location = middle + unit * found.location - by_location @ own_middle
    log_scale = found.log_scale + unit.log() - by_scale @ own_middle
    bound, anchor = found.bound + unit.log(), middle + unit * found.anchor
    return Noncentring(found.parents, location, by_location, log_scale, by_scale, bound, anchor)
