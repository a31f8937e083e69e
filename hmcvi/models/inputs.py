"""Distributions of a generator's inputs, on the whole line with unit variance, and variables made of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

LOGISTIC_SCALE = math.sqrt(3) / math.pi  # of the logistic distribution of unit variance


class Inputs(ABC):
    """Independent inputs of one distribution, shaped `shape`."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    @abstractmethod
    def log_prob(self, u: Tensor) -> Tensor:
        """log ρ(u), elementwise."""

    @abstractmethod
    def quantile(self, p: Tensor) -> Tensor:
        """The p-quantile of ρ, p in (0, 1), elementwise."""


class Normal(Inputs):
    """N(0, 1)"""

    def log_prob(self, u: Tensor) -> Tensor:
        return -0.5 * u.square() - 0.5 * math.log(2 * math.pi)

    def quantile(self, p: Tensor) -> Tensor:
        return torch.special.ndtri(p)


class Logistic(Inputs):
    """Logistic(0, √3/π)"""

    def log_prob(self, u: Tensor) -> Tensor:
        x = u / LOGISTIC_SCALE
        return logsigmoid(x) + logsigmoid(-x) - math.log(LOGISTIC_SCALE)

    def quantile(self, p: Tensor) -> Tensor:
        return LOGISTIC_SCALE * torch.logit(p)


class HyperbolicSecant(Inputs):
    """½ sech(π u / 2)"""

    def log_prob(self, u: Tensor) -> Tensor:
        return -torch.logaddexp(0.5 * math.pi * u, -0.5 * math.pi * u)

    def quantile(self, p: Tensor) -> Tensor:
        return (2 / math.pi) * torch.log(torch.tan(0.5 * math.pi * p))


def exponential(u: Tensor, rate: float | Tensor = 1.0) -> Tensor:
    """Exp(rate) from a logistic input."""
    return softplus(u / LOGISTIC_SCALE) / rate


def uniform(u: Tensor, low: float | Tensor = 0.0, high: float | Tensor = 1.0) -> Tensor:
    """U(low, high) from a logistic input."""
    return low + (high - low) * torch.sigmoid(u / LOGISTIC_SCALE)


def half_cauchy(u: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """|Cauchy(0, scale)| from a hyperbolic secant input."""
    return scale * torch.exp(0.5 * math.pi * u)


def log_normal(u: Tensor, loc: float | Tensor = 0.0, scale: float | Tensor = 1.0) -> Tensor:
    """exp(N(loc, scale²)) from a normal input."""
    return torch.exp(loc + scale * u)
