"""Distributions on the simplex as distributions in R^K, for Pyro models."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints


class AugmentedSoftmaxDistribution(TorchDistribution):
    """The distribution of y = log x + log r in R^K for x ~ `simplex` and log r ~ N(log K, 1); x = softmax(y).

        log p(y) = log p(x) + log N(log r; log K, 1) + Σ log x_i,   log r = logsumexp(y).

    All categories are treated alike, at the price of one dimension that carries no information.
    [Jhajharia et al. 2022, §3.3]

    >>> from torch.distributions import Dirichlet
    >>> augmented = AugmentedSoftmaxDistribution(Dirichlet(torch.ones(3)))
    >>> augmented.event_shape, augmented.log_prob(torch.zeros(3)).item()
    (torch.Size([3]), -3.521...)
    """

    support = constraints.real_vector
    has_rsample = True
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, simplex: Distribution, validate_args: bool | None = None) -> None:
        if len(simplex.event_shape) != 1:
            raise ValueError(f"expected a distribution of vectors on the simplex, got {simplex}")
        self.simplex = simplex
        self.has_rsample = simplex.has_rsample
        super().__init__(simplex.batch_shape, simplex.event_shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> AugmentedSoftmaxDistribution:
        return AugmentedSoftmaxDistribution(self.simplex.expand(batch_shape), self._validate_args)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._augment(self.simplex.rsample(sample_shape))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            return self._augment(self.simplex.sample(sample_shape))

    def _augment(self, x: Tensor) -> Tensor:
        log_size = math.log(x.shape[-1]) + torch.randn_like(x[..., :1])
        return x.clamp(min=torch.finfo(x.dtype).tiny).log() + log_size

    def log_prob(self, y: Tensor) -> Tensor:
        log_size = y.logsumexp(-1)
        log_x = y - log_size[..., None]
        x = log_x.exp().clamp(min=torch.finfo(y.dtype).tiny)
        size = Normal(math.log(y.shape[-1]), 1.0, validate_args=False)
        return self.simplex.log_prob(x) + size.log_prob(log_size) + log_x.sum(-1)
