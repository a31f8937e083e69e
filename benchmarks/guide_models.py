"""Pyro models on which guides are compared: curved, hierarchical, heavy-tailed, badly scaled, and normal."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools() -> None:
    """Non-centred."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", 8):
        eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
        pyro.sample("effects", dist.Normal(mu + tau * eta, ERRORS), obs=EFFECTS)


def eight_schools_centred() -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", 8):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("effects", dist.Normal(theta, ERRORS), obs=EFFECTS)


_factor = torch.randn(20, 20, generator=_generator(1)) / 20**0.5
GAUSSIAN = dist.MultivariateNormal(torch.arange(20.0) / 10, _factor @ _factor.T + 0.05 * torch.eye(20))


def correlated_gaussian() -> None:
    """log Z = 0."""
    z = pyro.sample("z", dist.Normal(torch.zeros(20), 1.0).to_event(1))
    pyro.factor("target", GAUSSIAN.log_prob(z) - dist.Normal(0.0, 1.0).log_prob(z).sum(-1))


def banana() -> None:
    """log Z = 0."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(x**2, 0.5))


def funnel() -> None:
    """log Z = 0.  [Neal 2003]"""
    v = pyro.sample("v", dist.Normal(0.0, 3.0))
    pyro.sample("x", dist.Normal(torch.zeros(4), (v[..., None] / 2).exp()).to_event(1))


INPUTS = torch.randn(30, 8, generator=_generator(2))
OUTPUTS = INPUTS @ torch.tensor([2.0, -1.5, 0, 0, 0, 0, 0, 0])
OUTPUTS = OUTPUTS + 0.5 * torch.randn(30, generator=_generator(20))


def horseshoe() -> None:
    """Regression with eight coefficients of which two count."""
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    local = pyro.sample("local", dist.HalfCauchy(torch.ones(8)).to_event(1))
    white = pyro.sample("white", dist.Normal(torch.zeros(8), 1.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    mean = (white * local * tau[..., None]) @ INPUTS.T
    pyro.sample("y", dist.Normal(mean, sigma[..., None]).to_event(1), obs=OUTPUTS)


def _volatile(count: int) -> Tensor:
    noise, variance, series = torch.randn(count, generator=_generator(3)), 1.0, []
    for e in noise.tolist():
        series.append(e * variance**0.5)
        variance = 0.3 + 0.4 * series[-1] ** 2 + 0.4 * variance
    return torch.tensor(series)


SERIES = _volatile(60)


def garch() -> None:
    """A GARCH(1, 1) model of 60 returns."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    level = pyro.sample("level", dist.HalfNormal(1.0))
    shock = pyro.sample("shock", dist.Uniform(0.0, 1.0))
    memory = pyro.sample("memory", dist.Uniform(0.0, 1.0)) * (1 - shock)
    variance, variances = SERIES.var().expand(level.shape), []
    for value in SERIES:
        variances.append(variance)
        variance = level + shock * (value - mu) ** 2 + memory * variance
    scale = torch.stack(variances, -1).sqrt()
    pyro.sample("y", dist.Normal(mu[..., None], scale).to_event(1), obs=SERIES)


MEASURED = torch.randn(60, 4, generator=_generator(4)) * torch.tensor([1e3, 1.0, 1e-2, 30.0])
MEASURED = MEASURED + torch.tensor([5e3, 0.0, 0.0, 100.0])
RESPONSE = (
    3 + MEASURED @ torch.tensor([2e-3, -1.0, 50.0, 0.05]) + 0.7 * torch.randn(60, generator=_generator(40))
)


def badly_scaled_regression() -> None:
    """Four inputs as they were measured, in units from 0.01 to 1000."""
    intercept = pyro.sample("intercept", dist.Normal(0.0, 100.0))
    slopes = pyro.sample("slopes", dist.Normal(torch.zeros(4), 100.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(5.0))
    mean = intercept[..., None] + slopes @ MEASURED.T
    pyro.sample("y", dist.Normal(mean, sigma[..., None]).to_event(1), obs=RESPONSE)


def _draw_gaussian(count: int) -> dict[str, Tensor]:
    return {"z": GAUSSIAN.sample(torch.Size([count]))}


def _draw_banana(count: int) -> dict[str, Tensor]:
    x = torch.randn(count)
    return {"x": x, "y": x**2 + 0.5 * torch.randn(count)}


def _draw_funnel(count: int) -> dict[str, Tensor]:
    v = 3 * torch.randn(count)
    return {"v": v, "x": (v / 2).exp()[:, None] * torch.randn(count, 4)}


# posteriors with log Z = 0 that can be drawn from
EXACT: dict[str, Callable[[int], dict[str, Tensor]]] = {
    "correlated gaussian": _draw_gaussian,
    "banana": _draw_banana,
    "funnel": _draw_funnel,
}

MODELS: dict[str, Callable[[], None]] = {
    "eight schools": eight_schools,
    "eight schools, centred": eight_schools_centred,
    "correlated gaussian": correlated_gaussian,
    "banana": banana,
    "horseshoe": horseshoe,
    "funnel": funnel,
    "garch": garch,
    "badly scaled regression": badly_scaled_regression,
}
