"""Transforms of the simplex: maps from R^{K−1} to x_1, …, x_K ≥ 0 with Σ x_i = 1.

They are chosen site by site; torch's registry of constraints stays as it is.
[Jhajharia, Axen, Haber, Pinkney & Carpenter 2022]
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.distributions import Transform, constraints
from torch.nn.functional import logsigmoid, pad


class SimplexTransform(Transform):
    """y [..., K−1] ↦ x [..., K], computed by way of log x, without the cancellation in 1 − Σ x_j.

    x is kept above the smallest normal number, at which densities with α < 1 are still finite.  Where methods
    override those of torch, their arguments have torch's names, x ↦ y.
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
        # softmax, because rounding errors of the logarithms would give a sum other than one
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


def _log_rest(like: Tensor) -> Tensor:
    """log(K − i) for i = 1, …, K − 1: how many pieces are left after the i-th.  [K−1]"""
    count = like.shape[-1]
    return torch.arange(count, 0, -1, dtype=like.dtype, device=like.device).log()


def _with_last(shape: torch.Size, change: int) -> torch.Size:
    if len(shape) < 1:
        raise ValueError("a point of the simplex is a vector [..., K], got a shape without dimensions")
    return torch.Size((*shape[:-1], shape[-1] + change))
