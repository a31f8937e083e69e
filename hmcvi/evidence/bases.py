"""Base distributions: normalised, and possible to draw from."""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from hmcvi.density import Density
from hmcvi.dynamics.metrics import CholeskyMetric, DiagonalMetric, Metric
from hmcvi.evidence.fits import Fit
from hmcvi.evidence.result import from_weights
from hmcvi.internal import random
from hmcvi.internal.checks import whole
from hmcvi.internal.random import Sampler
from hmcvi.internal.seeds import generator as seeded

CHECKED = 2000  # draws that test whether a distribution of unknown origin is normalised


class Base(Protocol):
    """Any distribution over vectors: torch's and Pyro's, a fit, or an object with these two methods."""

    def log_prob(self, value: Tensor) -> Tensor: ...

    def sample(self, sample_shape: torch.Size = ...) -> Tensor: ...


class NormalDensity(Density):
    """The density N(μ, L Lᵀ), its gradient in closed form; `metric` owns L.  [..., d]"""

    def __init__(self, mean: Tensor, metric: Metric) -> None:
        super().__init__(lambda z: metric.log_prob(z - mean))
        self._mean, self._metric = mean, metric

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        residual = position - self._mean
        return self._metric.log_prob(residual), -self._metric.velocity(residual)


def density_of(base: Base) -> Density:
    """log q as a `Density`."""
    match base:
        case Independent(base_dist=Normal() as normal, reinterpreted_batch_ndims=1):
            return NormalDensity(normal.loc.detach(), DiagonalMetric(normal.scale.detach().log()))
        case MultivariateNormal():
            return NormalDensity(base.loc.detach(), CholeskyMetric(base.scale_tril.detach()))
        case Fit():
            return NormalDensity(base.mean, CholeskyMetric(base.root))
    # a distribution that validates its arguments raises on NaN, where only that chain should fail
    return Density(lambda z: base.log_prob(torch.nan_to_num(z)))


class BaseDistribution:
    """A base q with what estimators ask of it: draws [count, *items, d] and the density log q."""

    def __init__(self, base: Base) -> None:
        if not (callable(getattr(base, "log_prob", None)) and callable(getattr(base, "sample", None))):
            raise TypeError(
                f"the base must be a distribution with log_prob and sample, got {type(base).__name__}: a "
                "density alone is not known to be normalised and cannot be drawn from"
            )
        if len(getattr(base, "event_shape", (1,))) != 1:
            raise ValueError(
                "the base must be a distribution over vectors: make coordinates into one event with "
                "torch.distributions.Independent(base, 1)"
            )
        self.base = base
        self.batch_shape: torch.Size = getattr(base, "batch_shape", torch.Size())
        if 0 in self.batch_shape:
            raise ValueError(f"the base has no items: its batch shape is {list(self.batch_shape)}")
        self.density = density_of(base)
        if not isinstance(base, Distribution | Fit):
            self._check_normalised()

    def sample(self, sample_shape: torch.Size) -> Tensor:
        return self.base.sample(sample_shape)

    def mean(self) -> Tensor | None:
        """The mean of the base, if it knows it.  [*items, d]"""
        return self._known("mean")

    def scale(self) -> Tensor | None:
        """The standard deviations of the base, if it knows them.  [*items, d]"""
        scale = self._known("stddev")
        return scale if scale is not None and (scale > 0).all() else None

    def _known(self, name: str) -> Tensor | None:
        try:
            value = getattr(self.base, name, None)
        except NotImplementedError:
            return None
        return value.detach() if isinstance(value, Tensor) else None

    def generator(self, seed: int) -> torch.Generator:
        """A generator of the user's seed, on the device of the base."""
        with random.Drawing(torch.Generator()):
            device = self.base.sample(torch.Size()).device
        return seeded(whole("seed", seed, 0), device=device)

    @torch.no_grad()
    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """[count, *items, d]"""
        shape = torch.empty(count, *self.batch_shape, 1, device="meta")
        return random.draw_from(cast(Sampler, self), shape, generator).detach()

    def target(self, target: Density) -> Density:
        """The target with this base."""
        if not isinstance(target, Density):
            raise TypeError(f"the target must be a hmcvi.Density, got {type(target).__name__}")
        return target.with_base(self.density)

    def _check_normalised(self) -> None:
        """Refuse q if ∫q = 1 / E_q[r/q] is not 1, for a normal r a little narrower than the draws of q.

        Where r covers q badly, few draws are effective and q is taken to be normalised.
        """
        draws = self.draw(2 * CHECKED, self.generator(0))
        first, second = draws.double().split(CHECKED)
        log_prob = self.density.finite_log_prob(draws[CHECKED:]).double()
        normal = Independent(Normal(first.mean(0), 0.9 * first.std(0) + 1e-300, validate_args=False), 1)
        check = from_weights(normal.log_prob(second) - log_prob)
        wrong = (check.ess > CHECKED / 10) & (check.log_z.abs() > 6 * check.std_error + 1e-3)
        if wrong.any():
            total = (-check.log_z[wrong]).exp().flatten()[0]
            raise ValueError(
                f"the base integrates to about {total:.3g}, not to 1: give a normalised log_prob"
            )
