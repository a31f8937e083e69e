"""Distributions of guides as transports of N(0, I): the coordinates in which they are refined."""

from __future__ import annotations

import torch
from pyro.distributions.transforms import LowerCholeskyAffine
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    ComposeTransform,
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    Transform,
    TransformedDistribution,
)

from hmcvi.density import Density, LogProb


def transport(distribution: Distribution) -> Transform:
    """The map T with T(e) ~ distribution over vectors [..., d] for e ~ N(0, I)."""
    match distribution:
        case Independent(base_dist=Normal() as normal) if len(distribution.event_shape) == 1:
            return AffineTransform(normal.loc, normal.scale, event_dim=1)
        case MultivariateNormal() | LowRankMultivariateNormal():
            return LowerCholeskyAffine(distribution.loc, distribution.scale_tril)
        case TransformedDistribution() if len(distribution.event_shape) == 1:
            return ComposeTransform([transport(distribution.base_dist), *distribution.transforms])
    raise ValueError(
        "HMC refines a normal distribution over vectors, or a flow of one (AutoDiagonalNormal, "
        f"AutoMultivariateNormal, AutoIAFNormal, Normal(loc, scale).to_event(1) ...), got {distribution}"
    )


def pulled_back(log_prob: LogProb, transform: Transform) -> Density:
    """The density log γ(T(e)) + log|det ∂T/∂e| of e, with N(0, I) as its base."""

    def in_noise(noise: Tensor) -> Tensor:
        position = transform(noise)
        return log_prob(position) + transform.log_abs_det_jacobian(noise, position)

    return Density(in_noise, base=Density(standard_log_prob))


def standard_log_prob(noise: Tensor) -> Tensor:
    """log N(e; 0, I)  [..., d] -> [...]"""
    return Normal(torch.zeros_like(noise), 1.0, validate_args=False).log_prob(noise).sum(-1)
