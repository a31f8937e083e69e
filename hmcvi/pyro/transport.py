"""Laws of guides as transports of N(0, I): the coordinates in which their refinement moves."""

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


def transport(law: Distribution) -> Transform:
    """T with T(e) ~ law over vectors [..., d] for e ~ N(0, I)."""
    match law:
        case Independent(base_dist=Normal() as normal) if len(law.event_shape) == 1:
            return AffineTransform(normal.loc, normal.scale, event_dim=1)
        case MultivariateNormal() | LowRankMultivariateNormal():
            return LowerCholeskyAffine(law.loc, law.scale_tril)
        case TransformedDistribution() if len(law.event_shape) == 1:
            return ComposeTransform([transport(law.base_dist), *law.transforms])
    raise ValueError(
        "HMC starts from a normal law over vectors, or from a flow of one (AutoDiagonalNormal, "
        f"AutoMultivariateNormal, AutoIAFNormal, Normal(loc, scale).to_event(1) ...), got {law}"
    )


def pulled_back(log_prob: LogProb, transform: Transform) -> Density:
    """log γ(T(e)) + log|det ∂T/∂e|, bridged from N(0, I)."""

    def in_noise(noise: Tensor) -> Tensor:
        position = transform(noise)
        return log_prob(position) + transform.log_abs_det_jacobian(noise, position)

    return Density(in_noise, base=Density(standard_log_prob))


def standard_log_prob(noise: Tensor) -> Tensor:
    """log N(e; 0, I)  [..., d] -> [...]"""
    return Normal(torch.zeros_like(noise), 1.0, validate_args=False).log_prob(noise).sum(-1)
