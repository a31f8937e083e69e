"""Simplex transforms for single sites of a model, by Pyro's reparameterisation."""

from __future__ import annotations

from typing import Any

import pyro
from pyro import distributions as dist
from pyro.infer.reparam.reparam import Reparam
from torch import Tensor
from torch.distributions import Distribution, Transform

from hmcvi.flows.augmented_softmax import AugmentedSoftmaxDistribution


class _OnTheSimplex(Reparam):
    """Reparameterisation of x ~ fn on the simplex: an auxiliary site y in R^n, and x as a function of it."""

    suffix: str

    def distribution(self, fn: Distribution) -> Distribution:
        """The distribution of y."""
        raise NotImplementedError

    def to_simplex(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def to_auxiliary(self, x: Tensor) -> Tensor:
        """Some y that gives x."""
        raise NotImplementedError

    def apply(self, msg: Any) -> Any:
        name, value = msg["name"], msg["value"]
        fn, event_dim = self._unwrap(msg["fn"])
        if msg["is_observed"]:
            raise NotImplementedError(
                f"At pyro.sample({name!r},...), {type(self).__name__} does not support observe statements."
            )
        if "simplex" not in str(fn.support).lower():
            raise ValueError(
                f"At pyro.sample({name!r},...), {type(self).__name__} needs a distribution on the simplex "
                f"such as Dirichlet, got {type(fn).__name__}."
            )
        y = pyro.sample(
            f"{name}_{self.suffix}",
            self._wrap(self.distribution(fn), event_dim),
            obs=None if value is None else self.to_auxiliary(value),
            infer={"is_observed": False},
        )
        x = self.to_simplex(y) if value is None else value
        return {"fn": dist.Delta(x, event_dim=event_dim).mask(False), "value": x, "is_observed": True}


class AugmentedSoftmax(_OnTheSimplex):
    """x = softmax(y), y in R^K: x ~ fn and logsumexp(y) ~ N(log K, 1).

    For HMC and autoguides alike: poutine.reparam(model, {"weights": AugmentedSoftmax()}).

    >>> import torch
    >>> from pyro import poutine
    >>> model = lambda: pyro.sample("x", dist.Dirichlet(torch.ones(3)))
    >>> trace = poutine.trace(poutine.reparam(model, {"x": AugmentedSoftmax()})).get_trace()
    >>> torch.equal(trace.nodes["x"]["value"], trace.nodes["x_augmented"]["value"].softmax(-1))
    True
    """

    suffix = "augmented"

    def distribution(self, fn: Distribution) -> Distribution:
        return AugmentedSoftmaxDistribution(fn)

    def to_simplex(self, y: Tensor) -> Tensor:
        return y.softmax(-1)

    def to_auxiliary(self, x: Tensor) -> Tensor:
        return x.log()


class SimplexReparam(_OnTheSimplex):
    """x = transform(y), y in R^{K−1}: `StickBreaking()` or `AdditiveLogRatio()` for one site of a guide."""

    suffix = "unconstrained"

    def __init__(self, transform: Transform) -> None:
        self.transform = transform

    def distribution(self, fn: Distribution) -> Distribution:
        return dist.TransformedDistribution(fn, self.transform.inv)

    def to_simplex(self, y: Tensor) -> Tensor:
        return self.transform(y)

    def to_auxiliary(self, x: Tensor) -> Tensor:
        return self.transform.inv(x)
