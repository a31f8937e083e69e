"""The models of `guide_models` in NumPyro, with the same names, sites and data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist

from benchmarks import guide_models as data


def _array(tensor: Any) -> jax.Array:
    return jnp.asarray(np.asarray(tensor))


EFFECTS, ERRORS = _array(data.EFFECTS), _array(data.ERRORS)
GAUSSIAN = dist.MultivariateNormal(_array(data.GAUSSIAN.loc), _array(data.GAUSSIAN.covariance_matrix))
INPUTS, OUTPUTS, SERIES = _array(data.INPUTS), _array(data.OUTPUTS), _array(data.SERIES)
MEASURED, RESPONSE = _array(data.MEASURED), _array(data.RESPONSE)


def eight_schools() -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
        numpyro.sample("effects", dist.Normal(mu + tau * eta, ERRORS), obs=EFFECTS)


def eight_schools_centred() -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effects", dist.Normal(theta, ERRORS), obs=EFFECTS)


def correlated_gaussian() -> None:
    z = numpyro.sample("z", dist.Normal(jnp.zeros(20), 1.0).to_event(1))
    numpyro.factor("target", GAUSSIAN.log_prob(z) - dist.Normal(0.0, 1.0).log_prob(z).sum(-1))


def banana() -> None:
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x**2, 0.5))


def funnel() -> None:
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    numpyro.sample("x", dist.Normal(jnp.zeros(4), jnp.exp(v / 2)).to_event(1))


def horseshoe() -> None:
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    local = numpyro.sample("local", dist.HalfCauchy(jnp.ones(8)).to_event(1))
    white = numpyro.sample("white", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(INPUTS @ (white * local * tau), sigma).to_event(1), obs=OUTPUTS)


def garch() -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    level = numpyro.sample("level", dist.HalfNormal(1.0))
    shock = numpyro.sample("shock", dist.Uniform(0.0, 1.0))
    memory = numpyro.sample("memory", dist.Uniform(0.0, 1.0)) * (1 - shock)

    def following(variance: Any, value: Any) -> tuple[Any, Any]:
        return level + shock * (value - mu) ** 2 + memory * variance, variance

    _, variances = jax.lax.scan(following, SERIES.var(ddof=1), SERIES)
    numpyro.sample("y", dist.Normal(mu, jnp.sqrt(variances)).to_event(1), obs=SERIES)


def badly_scaled_regression() -> None:
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 100.0))
    slopes = numpyro.sample("slopes", dist.Normal(jnp.zeros(4), 100.0).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
    numpyro.sample("y", dist.Normal(intercept + MEASURED @ slopes, sigma).to_event(1), obs=RESPONSE)


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
