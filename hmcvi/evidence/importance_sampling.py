"""Importance sampling: the estimate that all others improve on."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.chain import Chain, Phase, weigh
from hmcvi.density import Density
from hmcvi.evidence.bases import Base, BaseDistribution
from hmcvi.evidence.pareto import pareto_k
from hmcvi.evidence.result import Evidence, PerItem, from_weights, log_mean_exp, warn_if_few
from hmcvi.internal.checks import whole

ROWS = 4096  # draws evaluated at once


def importance(base: Base, target: Density, num_samples: int, seed: int = 0) -> Evidence:
    """Importance sampling: log Z ≈ log mean_n γ(z_n) / q(z_n), z_n ~ q.

    base: q, a distribution over vectors, its batch shape that of the data items.

    >>> base = torch.distributions.MultivariateNormal(torch.zeros(2), 4 * torch.eye(2))
    >>> target = Density(lambda z: -0.5 * z.square().sum(-1))  # Z = 2π
    >>> evidence = importance(base, target, num_samples=1000)
    >>> bool((evidence.log_z - torch.tensor(2 * torch.pi).log()).abs() < 4 * evidence.std_error)
    True
    """
    position, log_weight = _weighted_draws(base, target, whole("num_samples", num_samples, 1), seed)
    per_item = from_weights(log_weight)
    warn_if_few(per_item.ess, num_samples)
    return Evidence.of(per_item, {"pareto_k": pareto_k(log_weight)}, position, log_weight)


def iwae(base: Base, target: Density, num_samples: int, num_repeats: int = 1, seed: int = 0) -> Evidence:
    """The IWAE bound E[log mean_k w_k] ≤ log Z over num_samples weights, averaged over repeats.

    With one sample it is the ELBO.  The error is that of the average, or for a single repeat that of
    its importance sampling estimate; it does not include the gap of the bound.  [Burda et al. 2016]
    """
    num_samples, num_repeats = whole("num_samples", num_samples, 1), whole("num_repeats", num_repeats, 1)
    position, log_weight = _weighted_draws(base, target, num_samples * num_repeats, seed)
    pooled = from_weights(log_weight)
    bounds = log_mean_exp(log_weight.unflatten(0, (num_samples, num_repeats)))
    std_error = bounds.std(0) / num_repeats**0.5 if num_repeats > 1 else pooled.std_error
    per_item = PerItem(bounds.mean(0), std_error, pooled.ess)
    return Evidence.of(per_item, {"bounds": bounds, "pareto_k": pareto_k(log_weight)}, position, log_weight)


@torch.no_grad()
def _weighted_draws(base: Base, target: Density, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """z ~ q [count, *items, d] and log γ(z) − log q(z) [count, *items]"""
    q = BaseDistribution(base)
    target = q.target(target)
    position = q.draw(count, q.generator(seed))
    target.check(position[:1], differentiable=False)
    rows = max(1, ROWS // max(1, q.batch_shape.numel()))
    log_weight = [
        weigh(Chain(), Phase(part), q.density.finite_log_prob(part), target).log_weight
        for part in position.split(rows)
    ]
    return position, torch.cat(log_weight).double()
