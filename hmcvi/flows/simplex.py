"""The simplex without its constraint: maps from R^{K−1} or R^K to x_1, …, x_K ≥ 0 with Σ x_i = 1.

They are used where they are asked for, site by site; torch's registry of constraints stays as it is.
[Jhajharia, Axen, Haber, Pinkney & Carpenter 2022]
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, Transform, constraints
from torch.nn.functional import logsigmoid, pad


class SimplexTransform(Transform):
    """y [..., K−1] ↦ x [..., K] by way of log x, which neither 1 − Σ x_j nor a long product wipes out.

    x is kept above the smallest normal number, at which densities with α < 1 are still finite.  The methods
    have torch's names for their arguments, by which x ↦ y.
    """

    domain = constraints.real_vector
    codomain = constraints.simplex
    bijective = True

    @abstractmethod
    def log_simplex(self, y: Tensor) -> Tensor:
        """log x  [..., K−1] -> [..., K]"""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    __hash__ = Transform.__hash__

    def _call(self, y: Tensor) -> Tensor:
        # softmax of logarithms: their rounding errors would else add up to a sum that is not one
        return self.log_simplex(y).softmax(-1).clamp(min=torch.finfo(y.dtype).tiny)

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        return _with_last(shape, 1)

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        return _with_last(shape, -1)


class StickBreaking(SimplexTransform):
    """x_i = z_i (1 − Σ_{j<i} x_j),  z_i = σ(y_i − log(K − i)): y = 0 is the centre of the simplex.

        log|det| = Σ_{i<K} log x_i + log(1 − z_i)      [Jhajharia et al. 2022, §3.1]

    >>> StickBreaking()(torch.zeros(3))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def log_simplex(self, y: Tensor) -> Tensor:
        logit = y - _log_rest(y)
        left = logsigmoid(-logit).cumsum(-1)  # log of what the first i pieces leave over
        return pad(logsigmoid(logit), (0, 1)) + pad(left, (1, 0))

    def _inverse(self, x: Tensor) -> Tensor:
        x = x.clamp(min=torch.finfo(x.dtype).tiny)
        rest = x.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return x[..., :-1].log() - rest.log() + _log_rest(rest)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.log_simplex(x)[..., :-1] + logsigmoid(_log_rest(x) - x)).sum(-1)


class AdditiveLogRatio(SimplexTransform):
    """x = softmax(y_1, …, y_{K−1}, 0),  y_i = log x_i − log x_K;  log|det| = Σ_{i≤K} log x_i.

    [Aitchison 1982; Jhajharia et al. 2022, §3.2]

    >>> AdditiveLogRatio()(torch.tensor([0.0, 0.0]).log1p())
    tensor([0.3333, 0.3333, 0.3333])
    """

    def log_simplex(self, y: Tensor) -> Tensor:
        return pad(y, (0, 1)).log_softmax(-1)

    def _inverse(self, x: Tensor) -> Tensor:
        log_x = x.clamp(min=torch.finfo(x.dtype).tiny).log()
        return log_x[..., :-1] - log_x[..., -1:]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.log_simplex(x).sum(-1)


class AugmentedSoftmaxLaw(TorchDistribution):
    """The law of y = log x + log r in R^K for x ~ `simplex` and log r ~ N(log K, 1):  x = softmax(y).

        log p(y) = log p(x) + log N(log r; log K, 1) + Σ log x_i,   log r = logsumexp(y).

    All categories are treated alike, at the price of one dimension that carries no information.
    [Jhajharia et al. 2022, §3.3]

    >>> from torch.distributions import Dirichlet
    >>> law = AugmentedSoftmaxLaw(Dirichlet(torch.ones(3)))
    >>> law.event_shape, law.log_prob(torch.zeros(3)).item()
    (torch.Size([3]), -3.521...)
    """

    support = constraints.real_vector
    has_rsample = True
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, simplex: Distribution, validate_args: bool | None = None) -> None:
        if len(simplex.event_shape) != 1:
            raise ValueError(f"expected a law of vectors on the simplex, got {simplex}")
        self.simplex = simplex
        self.has_rsample = simplex.has_rsample
        super().__init__(simplex.batch_shape, simplex.event_shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> AugmentedSoftmaxLaw:
        return AugmentedSoftmaxLaw(self.simplex.expand(batch_shape), self._validate_args)

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
        size_law = Normal(math.log(y.shape[-1]), 1.0, validate_args=False)
        return self.simplex.log_prob(x) + size_law.log_prob(log_size) + log_x.sum(-1)


def _log_rest(like: Tensor) -> Tensor:
    """log(K − i) for i = 1, …, K − 1: how many pieces are left after the i-th.  [K−1]"""
    count = like.shape[-1]
    return torch.arange(count, 0, -1, dtype=like.dtype, device=like.device).log()


def _with_last(shape: torch.Size, change: int) -> torch.Size:
    if len(shape) < 1:
        raise ValueError("a point of the simplex is a vector [..., K], got a shape without dimensions")
    return torch.Size((*shape[:-1], shape[-1] + change))
