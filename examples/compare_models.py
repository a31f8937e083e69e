"""Which model do the data prefer?  The evidence of two regressions, by annealing.

    python examples/compare_models.py

The data bend a little: is a straight line with heavy-tailed noise enough, or is a parabola needed?  Annealing
starts from a guide that is fitted before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pyro
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor

import hmcvi


def line(x: Tensor, y: Tensor) -> None:
    weights = pyro.sample("weights", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(4.0, weights[..., :1] + weights[..., 1:] * x, scale), obs=y)


def parabola(x: Tensor, y: Tensor) -> None:
    weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        mean = weights[..., :1] + weights[..., 1:2] * x + weights[..., 2:] * x.square()
        pyro.sample("y", dist.Normal(mean, scale), obs=y)


def fit(model: Callable[..., None], num_steps: int, *data: Tensor) -> AutoMultivariateNormal:
    pyro.clear_param_store()
    guide = AutoMultivariateNormal(model)
    elbo = Trace_ELBO(num_particles=8, vectorize_particles=True)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.995}), elbo)
    for _ in range(num_steps):
        svi.step(*data)
    return guide


def main(num_steps: int = 600, num_chains: int = 200) -> None:
    pyro.set_rng_seed(0)
    x = torch.linspace(-1, 1, 40)
    y = 0.5 + x + 0.6 * x.square() + 0.3 * torch.randn(40)
    log_evidence = {}
    for model in (line, parabola):
        guide = fit(model, num_steps, x, y)
        result = hmcvi.pyro.evidence(
            model, x, y, base=guide, num_temperatures=20, num_chains=num_chains, progress=False
        )
        log_evidence[model] = float(result.log_z)
        print(f"log evidence of the {model.__name__:<9}{result.log_z:8.2f} ± {result.std_error:.2f}")
    log_factor = log_evidence[parabola] - log_evidence[line]
    better = "parabola" if log_factor > 0 else "line"
    print(f"the data prefer the {better}, by a factor of {math.exp(abs(log_factor)):.1f}")


if __name__ == "__main__":
    main()
