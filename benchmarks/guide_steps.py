"""A step of AutoHMC with twelve leapfrogs and 32 particles, in steps of AutoMultivariateNormal with as many.

CPU time of single steps of SVI, both guides in turns, medians; of AutoHMC as it is, by a traced program, and
with its chains run by Python as in the first steps of a training.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal

from benchmarks.guide_models import MODELS
from benchmarks.measuring import Record
from hmcvi.pyro import AutoHMC

NUM_LEAPFROG, NUM_PARTICLES = 12, 32
_generator = torch.Generator().manual_seed(0)
INPUTS = torch.randn(100, 20, generator=_generator)
OUTPUTS = INPUTS.sum(-1) / 5 + 0.5 * torch.randn(100, generator=_generator)


def regression() -> None:
    """20 coefficients, 100 observations."""
    weight = pyro.sample("weight", dist.Normal(torch.zeros(20), 1.0).to_event(1))
    with pyro.plate("data", 100):
        pyro.sample("y", dist.Normal(weight @ INPUTS.T, 0.5), obs=OUTPUTS)


CASES: dict[str, Callable[..., Any]] = {
    "eight schools": MODELS["eight schools"],
    "garch": MODELS["garch"],
    "20-d regression": regression,
}


def trainer(model: Callable[..., Any], guide: Any, loss: Any) -> Callable[[], None]:
    """One step of a training of its own, in a param store of its own."""
    store = pyro.get_param_store()
    with store.scope() as state:
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), loss)
        for _ in range(3):
            svi.step()

    def step() -> None:
        nonlocal state
        with store.scope(state) as state:
            svi.step()

    return step


def seconds(step: Callable[[], None]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def measure(model: Callable[..., Any], repeats: int) -> Record:
    torch.manual_seed(0)
    plain = AutoHMC(model, num_hmc=NUM_LEAPFROG, num_particles=NUM_PARTICLES)
    plain._programs.stop("it is what the others are compared with")
    steps = {
        "AutoHMC": trainer(
            model, AutoHMC(model, num_hmc=NUM_LEAPFROG, num_particles=NUM_PARTICLES), Trace_ELBO()
        ),
        "AutoHMC, not traced": trainer(model, plain, Trace_ELBO()),
        "AutoMultivariateNormal": trainer(
            model, AutoMultivariateNormal(model), Trace_ELBO(NUM_PARTICLES, vectorize_particles=True)
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            times[name].append(seconds(step))
    medians = {name: statistics.median(values) for name, values in times.items()}
    normal = medians["AutoMultivariateNormal"]
    return {
        "milliseconds": {name: 1000 * value for name, value in medians.items()},
        "ratio": medians["AutoHMC"] / normal,
        "ratio, not traced": medians["AutoHMC, not traced"] / normal,
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="two repeats: shows that it runs")


def run(args: argparse.Namespace) -> Iterator[Record]:
    for name, model in CASES.items():
        yield {"model": name, **measure(model, args.repeats)}
