"""Distributions of guides as transports of N(0, I): the coordinates in which they are refined."""

from __future__ import annotations

from pyro.distributions.transforms import LowerCholeskyAffine
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

from hmcvi.density import Density, LogProb, PulledBack


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
    return PulledBack(Density(log_prob), transform)
