"""Which coordinates the scales and locations of others depend on, seen in draws and gradients."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_PARENTS = 12
STRONG = 0.35  # change of a log scale by one deviation of a parent
SHIFTED = 1.0  # change of a location by one deviation of a parent, in units of the scale
SHARE, CHILDREN = 0.1, 0.2  # of the variance of a location that it explains; of the children that it moves
REACH = 4.0  # deviations; draws beyond count as if they were there
ALIKE = 0.05  # of its variance left where the parents so far are known, below which it tells nothing new


def scale_parents(z: Tensor, grad: Tensor) -> tuple[list[int], Tensor]:
    """Parents of scales, the strongest first, and slopes of log|g_i| by them [d, r] of draws [n, d].

    Given the others, a normal coordinate of scale e^s has log|g_i| = −s and noise.  The coordinate that
    explains most of it, over all i together, is taken next, as long as it changes one of them strongly.
    """
    z = deviations(z)
    z = z - z.mean(0)
    log_size = grad.abs().clamp(min=1e-100).log()
    log_size = log_size - log_size.mean(0)
    parents: list[int] = []
    slopes, dim = z.new_zeros(z.shape[1], 0), z.shape[1]
    while len(parents) < min(MOST_PARENTS, dim - 1):
        known, left = z[:, parents], log_size - z[:, parents] @ slopes.mT
        free = z - known @ torch.linalg.lstsq(known, z).solution if parents else z
        power = free.square().mean(0)
        slope = (left.mT @ free) / len(z) / power.clamp(min=ALIKE)
        slope = slope.where((power > ALIKE) & (slope.abs() > STRONG), 0.0).fill_diagonal_(0.0)
        slope[parents], slope[:, parents] = 0.0, 0.0  # no parent depends on a later one
        strength = slope.square().sum(0)
        if not strength.any():
            break
        parents.append(int(strength.argmax()))
        slopes = torch.linalg.lstsq(z[:, parents], log_size).solution.mT * allowed(parents, dim)
    return parents, slopes


def location_parents(
    parents: list[int], children: list[int], z: Tensor, grad: Tensor, log_scale: Tensor
) -> list[int]:
    """Coordinates that move the locations m_i of several children, whose scales e^s [n, d] have parents.

    e^{−s} z_i + e^s g_i is e^{−s} m_i(z) for a normal z_i; it is regressed on e^{−s} (1, z_k).
    """
    found: list[int] = []
    scale = log_scale.exp()
    answer = z / scale + grad * scale
    while len(parents) + len(found) < MOST_PARENTS:
        known = [*parents, *found]
        shares = z.new_zeros(len(children), z.shape[1])
        for row, i in enumerate(children):
            if i not in known:
                shares[row] = _moving(z / scale[:, i, None], answer[:, i], 1 / scale[:, i], known)
                shares[row, [i, *known]] = 0.0
        enough = (shares > 0).sum(0) >= max(2.0, CHILDREN * len(children))
        if not enough.any():
            break
        asked = torch.full_like(shares[0], len(children))  # those that it could move
        asked[children] -= 1
        # a member of a group follows the mean of the group too, but what it leaves unexplained is larger
        told = -torch.log1p(-shares.clamp(max=1 - 1e-12)).sum(0) / asked
        found.append(int(told.where(enough, 0.0).argmax()))
    return found


def _moving(weighted: Tensor, answer: Tensor, weight: Tensor, known: list[int]) -> Tensor:
    """The share that each coordinate explains, beyond the known ones, of where one is, if it is good.  [d]"""
    design = torch.cat([weight[:, None], weighted[:, known]], 1)
    columns = torch.cat([weighted, answer[:, None]], 1)
    columns = columns - design @ torch.linalg.lstsq(design, columns).solution
    free, left = columns[:, :-1], columns[:, -1:]
    power = free.square().mean(0)
    shift = (free * left).mean(0) / power.clamp(min=1e-12).sqrt()
    new = power > 1e-6 * weight.square().mean()
    share = shift.square() / left.square().mean()
    return share.where(new & (shift.abs() > SHIFTED) & (share > SHARE), 0.0)


def allowed(parents: list[int], dim: int) -> Tensor:
    """One where a coordinate may depend on a parent: parents on those before them alone.  [d, r]"""
    mask = torch.ones(dim, len(parents), dtype=torch.float64)
    for index, parent in enumerate(parents):
        mask[parent, index:] = 0.0
    return mask


def deviations(z: Tensor) -> Tensor:
    """Distances from the median, in robust units, that no outlier dominates.  [n, d]"""
    gap = z - z.median(0).values
    width = gap.abs().median(0).values.clamp(min=1e-9) / 0.6745
    return (gap / width).clamp(-REACH, REACH)
