"""Exact posteriors over two latents, normalised on a grid that finds their mass."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

REACH = 5.0  # standard deviations of the prior that are searched, and as far as samples were drawn
DROP = 14.0  # nats below the mode at which a posterior ends: a millionth of the mass of a Gaussian is beyond
SEARCH, ZOOM, FINE = 120, 60, 180  # points per side: of the whole plane, of each box on the way, of the last
MOST_ZOOMS = 30
ROWS = 4096  # points evaluated at once

LogJoint = Callable[[Tensor], Tensor]
Box = tuple[Tensor, Tensor]  # lower and upper corner  [2]


class GridPosterior(NamedTuple):
    """p(z|x) at the points (first_i, second_j), and the integral that normalised it."""

    first: Tensor  # z₁  [n]
    second: Tensor  # z₂  [n]
    log_density: Tensor  # log p(z|x)  [n, n]
    log_evidence: float  # log p(x)

    @property
    def cell(self) -> float:
        """The area of a grid cell."""
        sides = ((places[-1] - places[0]) / (len(places) - 1) for places in (self.first, self.second))
        return math.prod(side.item() for side in sides)

    def level(self, mass: float) -> float:
        """The log density above which this share of the mass lies."""
        ordered = self.log_density.flatten().sort(descending=True).values
        inside = (ordered.exp().cumsum(0) * self.cell < mass).sum()
        return ordered[min(int(inside), len(ordered) - 1)].item()

    def box(self, mass: float) -> Box:
        """The smallest box around the region of highest density with this share of the mass."""
        inside = self.log_density >= self.level(mass)
        places = (self.first[inside.any(1)], self.second[inside.any(0)])
        return torch.stack([p.min() for p in places]), torch.stack([p.max() for p in places])


@torch.no_grad()
def grid_posterior(log_joint: LogJoint, near: Tensor) -> GridPosterior:
    """p(z|x) = p(x, z) / ∫ p(x, z) dz, z two-dimensional, for log_joint [..., 2] -> [...].

    near: samples [S, 2] about where the mass is, which may be too small to be seen on the plane.  The grid
    shrinks to the box in which log p(x, z) is within DROP of its maximum.
    """
    reach, spread = torch.full_like(near[0], REACH), 2 * near.std(0)
    box = torch.minimum(-reach, near.amin(0) - spread), torch.maximum(reach, near.amax(0) + spread)
    at_samples = _values(log_joint, near)
    for side in (SEARCH, *MOST_ZOOMS * [ZOOM]):
        points = _points(box, side)
        values = torch.cat([_values(log_joint, points), at_samples])
        smaller, cell = _box(torch.cat([points, near]), values), (box[1] - box[0]) / (side - 1)
        settled = (smaller[1] - smaller[0]).prod() > 0.8 * (box[1] - box[0]).prod()
        box = smaller[0] - cell, smaller[1] + cell
        if settled:
            break
    points = _points(box, FINE)
    values = _values(log_joint, points).unflatten(0, (FINE, FINE))
    first, second = points[::FINE, 0].double().cpu(), points[:FINE, 1].double().cpu()
    posterior = GridPosterior(first, second, values, 0.0)
    log_evidence = values.flatten().logsumexp(0).item() + math.log(posterior.cell)
    return posterior._replace(log_density=values - log_evidence, log_evidence=log_evidence)


def _values(log_joint: LogJoint, points: Tensor) -> Tensor:
    """log p(x, z), −inf where it is not a number.  [n, 2] -> [n]"""
    values = torch.cat([log_joint(part) for part in points.split(ROWS)]).double().cpu()
    return values.where(values.isfinite(), -torch.inf)


def _points(box: Box, side: int) -> Tensor:
    """[side², 2], the second coordinate running fastest"""
    lower, upper = box
    fraction = torch.linspace(0, 1, side, dtype=lower.dtype, device=lower.device)
    return lower + (upper - lower) * torch.cartesian_prod(fraction, fraction)


def _box(points: Tensor, values: Tensor) -> Box:
    """That of the points within DROP of the maximum.  [n, 2], [n]"""
    if not values.max().isfinite():
        raise ValueError("log p(x, z) is not finite anywhere: the model has no posterior to draw")
    inside = points[(values > values.max() - DROP).to(points.device)]
    return inside.amin(0), inside.amax(0)
