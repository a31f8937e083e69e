"""Pyro models with known posteriors, many from the tests of Pyro's own HMC, and the weights of guides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from torch import Tensor

from tests.support.problems import F64

_generator = torch.Generator().manual_seed(0)
GAUSSIAN = 1 + torch.randn(6, generator=_generator, dtype=F64)
COINS = torch.bernoulli(torch.tensor([0.9, 0.1, 0.5], dtype=F64).expand(20, 3), generator=_generator)
NORMALS = 3 + 0.7 * torch.randn(15, 2, generator=_generator, dtype=F64)
CATEGORIES = torch.tensor([0, 1, 1, 2, 2, 2, 0])


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=F64)


def conjugate_gaussian(data: Tensor) -> None:
    """z ~ N(0, 2²), data_i ~ N(z, 1)."""
    z = pyro.sample("z", dist.Normal(number(0.0), 2.0))
    with pyro.plate("data", len(data)):
        pyro.sample("obs", dist.Normal(z, 1.0), obs=data)


def beta_bernoulli(data: Tensor) -> None:
    """data: [n, 3]"""
    p = pyro.sample("p", dist.Beta(torch.tensor([1.1, 1.1, 1.1], dtype=F64), 1.1).to_event(1))
    with pyro.plate("data", len(data)):
        pyro.sample("obs", dist.Bernoulli(p).to_event(1), obs=data)


def gamma_normal(data: Tensor) -> None:
    """Precision with its conjugate prior, twice and without a plate, as in Pyro's test."""
    precision = pyro.sample("precision", dist.Gamma(torch.tensor([1.0, 2.0], dtype=F64), 1.0).to_event(1))
    pyro.sample(
        "obs", dist.Normal(number(3.0), precision.rsqrt()).expand([len(data), 2]).to_event(2), obs=data
    )


def dirichlet_categorical(data: Tensor) -> None:
    p = pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0], dtype=F64)))
    with pyro.plate("data", len(data)):
        pyro.sample("obs", dist.Categorical(p), obs=data)


def logistic_regression(inputs: Tensor, labels: Tensor) -> None:
    """No plate, no to_event: written for one chain at a time."""
    coefs = pyro.sample("coefs", dist.Normal(torch.zeros(inputs.shape[1], dtype=F64), 1.0))
    pyro.sample("labels", dist.Bernoulli(logits=(coefs * inputs).sum(-1)), obs=labels)


def logistic_data(count: int = 200, dim: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, dim, generator=generator, dtype=F64)
    logits = inputs @ torch.arange(1, dim + 1, dtype=F64)
    return inputs, torch.bernoulli(logits.sigmoid(), generator=generator)


class LogisticPosterior:
    """Of logistic_regression with two coefficients: moments by quadrature, draws by rejection."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._signs = (2 * labels - 1)[:, None] * inputs
        line = torch.linspace(-6, 6, 401, dtype=F64)
        grid = torch.cartesian_prod(line, line)
        log_likelihood = self._log_likelihood(grid)
        self._peak = log_likelihood.max() + 1e-3
        share = (log_likelihood - 0.5 * grid.square().sum(-1)).softmax(0)
        self.mean = share @ grid
        self.variance = share @ (grid - self.mean).square()

    def _log_likelihood(self, coefs: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(coefs @ self._signs.T).sum(-1)

    def sample(self, shape: tuple[int]) -> Tensor:
        draws = torch.randn(400 * shape[0], 2, dtype=F64)
        accepted = torch.rand(len(draws), dtype=F64).log() < self._log_likelihood(draws) - self._peak
        assert accepted.sum() >= shape[0]
        return draws[accepted][: shape[0]]


class PoissonEffects:
    """mu ~ N(0, 1), z_i ~ N(mu, 1), counts_i ~ Poisson(e^z_i): z integrated out by quadrature."""

    counts = torch.tensor([0.0, 3.0, 5.0], dtype=F64)

    def __call__(self) -> None:
        mu = pyro.sample("mu", dist.Normal(number(0.0), 1.0))
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Normal(mu, 1.0))
            pyro.sample("counts", dist.Poisson(z.exp()), obs=self.counts)

    def log_marginal(self, mu: Tensor) -> Tensor:
        """log p(mu, counts)  [n] -> [n]"""
        z = torch.linspace(-10, 10, 2001, dtype=F64)[:, None]
        log_likelihood = dist.Poisson(z.exp()).log_prob(self.counts)
        weighted = dist.Normal(mu[:, None, None], 1.0).log_prob(z) + log_likelihood
        integrals = torch.trapezoid(weighted.exp(), z[:, 0], dim=1).log().sum(-1)
        return dist.Normal(number(0.0), 1.0).log_prob(mu) + integrals

    def posterior_mean(self) -> float:
        mu = torch.linspace(-4, 5, 181, dtype=F64)
        return float(self.log_marginal(mu).softmax(0) @ mu)


EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=F64)
ERRORS = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=F64)


def eight_schools() -> None:
    """Non-centred.  [Rubin 1981]"""
    mu = pyro.sample("mu", dist.Normal(number(0.0), 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(number(5.0)))
    with pyro.plate("schools", 8):
        eta = pyro.sample("eta", dist.Normal(number(0.0), 1.0))
        pyro.sample("obs", dist.Normal(mu + tau * eta, ERRORS), obs=EFFECTS)


class EightSchoolsPosterior:
    """mu and eta given tau by hand, log tau by quadrature."""

    def __init__(self) -> None:
        self._log_tau = torch.linspace(-20, 12, 40_001, dtype=F64)
        self._tau = self._log_tau.exp()[:, None]
        precision = 1 / (self._tau.square() + ERRORS.square())  # of an effect given mu
        self._spread, total = 1 / 25 + precision.sum(-1), (precision * EFFECTS).sum(-1)
        self._centre = total / self._spread  # of mu given tau
        log_likelihood = 0.5 * (
            (precision / (2 * math.pi)).log().sum(-1)
            - (precision * EFFECTS.square()).sum(-1)
            + total.square() / self._spread
            - (25 * self._spread).log()
        )
        prior = dist.HalfCauchy(number(5.0)).log_prob(self._tau[:, 0]) + self._log_tau
        self._log_joint = prior + log_likelihood

    def log_evidence(self) -> float:
        return float(torch.trapezoid(self._log_joint.exp(), self._log_tau).log())

    def moments(self) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of mu, log tau and eta.  [10], [10]"""
        gain = self._tau / (ERRORS.square() + self._tau.square())
        means = torch.column_stack(
            [self._centre, self._log_tau, gain * (EFFECTS - self._centre[:, None])]
        )  # given tau
        left = ERRORS.square() / (ERRORS.square() + self._tau.square())  # variance of eta given mu and tau
        variances = torch.column_stack(
            [1 / self._spread, 0 * self._log_tau, gain.square() / self._spread[:, None] + left]
        )
        share = self._log_joint.softmax(0)
        mean = share @ means
        return mean, (share @ (variances + (means - mean).square())).sqrt()


class CorrelatedGaussian:
    """z ~ N(0, I) in 20 dimensions and a noisy sum of them observed: evidence and posterior are known."""

    dim, noise, observed = 20, 0.5, 3.0

    def __call__(self) -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(self.dim, dtype=F64), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(z.sum(-1), self.noise), obs=number(self.observed))

    def log_evidence(self) -> float:
        variance = self.dim + self.noise**2
        return -0.5 * self.observed**2 / variance - 0.5 * math.log(2 * math.pi * variance)

    def covariance(self) -> Tensor:
        ones = torch.ones(self.dim, self.dim, dtype=F64)
        return torch.eye(self.dim, dtype=F64) - ones / (self.dim + self.noise**2)

    def mean(self) -> Tensor:
        return torch.full((self.dim,), self.observed / (self.dim + self.noise**2), dtype=F64)


def banana() -> None:
    """a ~ N(0, 1), b ~ N(a² + a, 0.5²), normalised; means are 0 and 1, variances 1 and 3.25."""
    a = pyro.sample("a", dist.Normal(number(0.0), 1.0))
    pyro.sample("b", dist.Normal(a**2 + a, 0.5))


def sparse_logistic(inputs: Tensor, labels: Tensor) -> None:
    """Horseshoe prior, not centred."""
    scale = pyro.sample("scale", dist.HalfCauchy(number(0.3)))
    with pyro.plate("features", inputs.shape[1]):
        local = pyro.sample("local", dist.HalfCauchy(number(1.0)))
        raw = pyro.sample("raw", dist.Normal(number(0.0), 1.0))
    with pyro.plate("data", len(inputs)):
        pyro.sample("obs", dist.Bernoulli(logits=(raw * local * scale) @ inputs.T), obs=labels)


def change_point(counts: Tensor) -> None:
    """Poisson counts whose rate changes at an unknown day."""
    early = pyro.sample("early", dist.Gamma(number(2.0), 0.5))
    late = pyro.sample("late", dist.Gamma(number(2.0), 0.5))
    day = pyro.sample("day", dist.Categorical(torch.ones(len(counts), dtype=F64)))
    rates = torch.where(torch.arange(len(counts)) < day, early, late)
    with pyro.plate("days", len(counts)):
        pyro.sample("counts", dist.Poisson(rates), obs=counts)


def unknown_counts(totals: Tensor) -> None:
    """n_i ~ Poisson(4) animals, of which totals_i are seen, each with probability one half."""
    with pyro.plate("sites", len(totals)):
        n = pyro.sample("n", dist.Poisson(torch.tensor(4.0, dtype=F64)))
        pyro.sample("seen", dist.Poisson(0.5 * n + 0.1), obs=totals)


def log_weights(model: Callable[..., Any], guide: AutoGuide, count: int, nesting: int, *args: Any) -> Tensor:
    """log p(x, z) − log q(z, everything else) of independent draws.  [count]"""
    particles = pyro.plate("particles", count, dim=-1 - nesting)
    with torch.no_grad():
        guide_trace = poutine.trace(particles(guide)).get_trace(*args)
        model_trace = poutine.trace(poutine.replay(particles(model), guide_trace)).get_trace(*args)
    total = torch.zeros(count, dtype=F64)
    for trace, sign in ((model_trace, 1), (guide_trace, -1)):
        trace.compute_log_prob()
        for site in trace.nodes.values():
            if site["type"] == "sample" and site["log_prob"].ndim:
                total += sign * site["log_prob"].reshape(count, -1).sum(-1)
    return total
