"""Partial non-centring, learned from draws and gradients where scales depend on other coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.adaptation.fisher import FisherMoments
from hmcvi.dynamics.noncentring import Noncentring

LEAST, PER_DIMENSION = 200, 4  # draws, in all and for each dimension
MOST_DIM, MOST_ROWS, MOST_PARENTS = 150, 2000, 12
STRONG = 0.35  # change of a log scale by one deviation of a parent
SHIFTED = 1.0  # change of a location by one deviation of a parent, in units of the scale there
REACH = 4.0  # deviations; draws beyond count as if they were there
BETTER = 0.7  # of the Fisher divergence, at most, is to be left
ITERATIONS = 60


class NoncentringSearch:
    """Keeps the draws of a window, to learn coordinates from them if these are needed."""

    def __init__(self) -> None:
        self._positions: list[Tensor] = []
        self._grads: list[Tensor] = []

    def add(self, position: Tensor, grad: Tensor) -> None:
        """Draws [chains, d] with their gradients."""
        if position.shape[-1] <= MOST_DIM:
            self._positions.append(position.double())
            self._grads.append(grad.double())

    def learn(self, dense: bool | None, like: Tensor) -> tuple[Noncentring, Tensor] | None:
        """Coordinates in the dtype of `like`, and the covariance of draws in them, if both are found."""
        if not self._positions:
            return None
        position, grad = torch.cat(self._positions), torch.cat(self._grads)
        found = learn_noncentring(position, grad)
        if found is None:
            return None
        moments = FisherMoments(dense)
        moments.add(found.to_reference(position), found.pull_back(position, grad))
        covariance = moments.covariance()
        return None if covariance is None else (found.to(like), covariance)


def learn_noncentring(position: Tensor, grad: Tensor) -> Noncentring | None:
    """Coordinates in which draws [n, d] with gradients [n, d] look most like those of a normal distribution.

    Parents are the coordinates on which log|∂ log γ/∂z_i| of others depends, which change scales, and then
    those on which the locations of the same others depend.  Given them, the slopes of each coordinate
    minimise the Fisher divergence from N(0, 1),

        Σ (e^s g_i + e^{−s} (z_i − m))²,   s = s_i + a_i·w,   m = c_i + b_i·w,

    which is zero where z_i is normal given the others, wherever the draws come from.
    None where there are too few draws, or no scale depends on another coordinate.
    """
    every = max(1, -(-len(position) // MOST_ROWS))
    position, grad = position[::every].double(), grad[::every].double()
    middle, unit = position.mean(0), position.std(0)
    count, dim = position.shape
    if dim > MOST_DIM or count < max(LEAST, PER_DIMENSION * dim):
        return None
    if not ((unit > 1e-100) & (unit < 1e100) & (grad.std(0) > 0) & grad.isfinite().all(0)).all():
        return None
    z, g = (position - middle) / unit, grad * unit
    log_size = g.abs().clamp(min=1e-100).log()
    scale_parents, slopes = _scale_parents(_clipped(z), log_size)
    if not scale_parents:
        return None
    children = (slopes.abs() > STRONG / 2).any(-1)
    log_scale = -log_size.mean(0) - _clipped(z)[:, scale_parents] @ slopes.mT
    parents = scale_parents + _location_parents(scale_parents, children, z, g, log_scale)
    found = _least_divergence(z, g, parents, len(scale_parents), children, log_scale)
    return None if found is None else _in_units(found, middle, unit)


def _clipped(z: Tensor) -> Tensor:
    """Deviations from the median, in robust units, that no outlier dominates.  [n, d]"""
    gap = z - z.median(0).values
    width = gap.abs().median(0).values.clamp(min=1e-9) / 0.6745
    return (gap / width).clamp(-REACH, REACH)


def _scale_parents(regressors: Tensor, log_size: Tensor) -> tuple[list[int], Tensor]:
    """Greedily, the coordinates that explain most of log|g|, and their slopes [d, r]."""
    count, dim = log_size.shape
    parents: list[int] = []
    slopes = log_size.new_zeros(dim, 0)
    left = log_size - log_size.mean(0)
    while len(parents) < min(MOST_PARENTS, dim - 1):
        free = regressors - regressors.mean(0)
        if parents:
            known = free[:, parents]
            free = free - known @ torch.linalg.lstsq(known, free).solution
        power = free.square().mean(0)
        slope = (left.mT @ free / count) / power.clamp(min=1e-9)
        slope = slope.masked_fill(torch.eye(dim, dtype=torch.bool), 0.0)
        slope[parents] = 0.0  # no parent depends on a later one
        slope[:, power < 0.05] = 0.0
        slope[:, parents] = 0.0
        strong = slope.where(slope.abs() > STRONG, 0.0)
        best = int(strong.square().sum(0).argmax())
        if not strong[:, best].any():
            break
        parents.append(best)
        design = regressors[:, parents] - regressors[:, parents].mean(0)
        slopes = torch.linalg.lstsq(design, log_size - log_size.mean(0)).solution.mT * _allowed(parents, dim)
        left = log_size - log_size.mean(0) - design @ slopes.mT
    return parents, slopes


def _allowed(parents: list[int], dim: int) -> Tensor:
    """1 where a coordinate may depend on a parent: a parent on those before it alone.  [d, r]"""
    mask = torch.ones(dim, len(parents), dtype=torch.float64)
    for index, parent in enumerate(parents):
        mask[parent, index:] = 0.0
    return mask


def _location_parents(
    parents: list[int], children: Tensor, z: Tensor, g: Tensor, log_scale: Tensor
) -> list[int]:
    """Coordinates that move the locations of at least two children by more than their scale.

    e^{−s} z_i + e^s g_i is e^{−s} m_i(z) for a normal z_i; it is regressed on e^{−s} (1, z_k).
    """
    found: list[int] = []
    weight = (-log_scale).exp()
    answer = weight * z + g / weight
    while len(parents) + len(found) < MOST_PARENTS:
        votes = torch.zeros(z.shape[1])
        for i in children.nonzero()[:, 0].tolist():
            if i in parents + found:
                continue
            known = weight[:, i, None] * torch.cat([torch.ones_like(z[:, :1]), z[:, parents + found]], 1)
            columns = torch.cat([weight[:, i, None] * z, answer[:, i, None]], 1)
            columns = columns - known @ torch.linalg.lstsq(known, columns).solution
            free, left = columns[:, :-1], columns[:, -1:]
            power = free.square().mean(0)
            shift = (free * left).mean(0) / power.clamp(min=1e-12).sqrt()
            explained = shift.square() / left.square().mean()
            candidate = (power > 1e-6 * (weight[:, i].square().mean())) & (shift.abs() > SHIFTED) & (explained > 0.1)
            candidate[[i, *parents, *found]] = False
            votes += candidate.double()
        if votes.max() < max(2, 0.3 * float(children.sum())):
            break
        found.append(int(votes.argmax()))
    return found


def _least_divergence(
    z: Tensor, g: Tensor, parents: list[int], num_scales: int, children: Tensor, log_scale: Tensor
) -> Noncentring | None:
    """Slopes of the children, by the method of Levenberg and Marquardt; the others keep their own units."""
    dim, count = z.shape[1], len(parents)
    design = torch.cat([torch.ones_like(z[:, :1]), z[:, parents]], 1)  # [n, 1 + r]
    allowed = torch.cat([torch.ones(dim, 1, dtype=z.dtype), _allowed(parents, dim)], 1)
    for_scale = allowed.clone()
    for_scale[:, 1 + num_scales :] = 0.0
    free = torch.cat([for_scale, allowed], 1)[children]
    z_c, g_c, n = z[:, children], g[:, children], len(z)
    flat = 0.5 * (z.std(0) / g.std(0)).log()
    start = torch.linalg.lstsq(design, log_scale[:, children]).solution.mT
    theta = torch.cat([start, torch.zeros_like(start)], 1) * free

    def residual(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale = (design @ theta[:, : 1 + count].mT).exp()
        gap = (z_c - design @ theta[:, 1 + count :].mT) / scale
        return scale * g_c + gap, scale * g_c - gap, 1 / scale

    before = (flat.exp() * g + (-flat).exp() * z)[:, children].square().mean(0)
    damping = torch.full_like(before, 1e-3)
    r, by_scale, weight = residual(theta)
    loss = r.square().mean(0)
    for _ in range(ITERATIONS):
        jacobian = torch.cat([by_scale.mT[..., None] * design, -weight.mT[..., None] * design], -1)
        jacobian = jacobian * free[:, None]
        normal = jacobian.mT @ jacobian / n
        slope = (jacobian * r.mT[..., None]).mean(1)
        diagonal = normal.diagonal(dim1=-2, dim2=-1)
        ridge = damping[:, None] * diagonal + (1 - free) + 1e-10
        step = torch.linalg.solve(normal + torch.diag_embed(ridge), slope)
        trial = theta - step * free
        new = residual(trial)
        new_loss = new[0].square().mean(0)
        better = new_loss < loss
        theta = torch.where(better[:, None], trial, theta)
        damping = torch.where(better, damping / 4, damping * 6).clamp(1e-9, 1e9)
        gain = ((loss - new_loss) / loss).where(better, 0.0)
        r, by_scale, weight = residual(theta)
        loss = r.square().mean(0)
        if not (gain > 1e-6).any() and (damping > 1).all():
            break
    if loss.log().mean() > before.log().mean() + torch.tensor(BETTER).log():
        return None
    values = torch.zeros(dim, 2 + 2 * count, dtype=z.dtype)
    values[:, 0] = flat
    values[children] = theta
    return Noncentring(
        torch.tensor(parents), values[:, 1 + count], values[:, 2 + count :], values[:, 0], values[:, 1 : 1 + count]
    )


def _in_units(found: Noncentring, middle: Tensor, unit: Tensor) -> Noncentring:
    """The same of middle + unit · z."""
    p = found.parents
    by_location = unit[:, None] * found.by_location / unit[p]
    by_scale = found.by_scale / unit[p]
    return Noncentring(
        p,
        middle + unit * found.location - by_location @ middle[p],
        by_location,
        found.log_scale + unit.log() - by_scale @ middle[p],
        by_scale,
    )
