"""Kernels in Pyro's MCMC: KernelAdapter(model, HMC) and Pyro's NUTS, CPU seconds to 1,000 effective draws.

One chain from a uniform(−2, 2) start, 500 transitions of warm-up and 1,000 draws, everything as it comes by
default; NUTS as it is and with jit_compile.  Engines take turns.  One record for each run: CPU seconds of all
of it, the least bulk ESS of the unconstrained coordinates, CPU seconds to an ESS of 1,000 (with the time of
warm-up and set-up scaled too), and RMS errors of means and of logarithms of standard deviations.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, NUTS

from benchmarks.measuring import Record
from benchmarks.pyro_models import Moments, errors, moments
from hmcvi.kernels import HMC
from hmcvi.pyro import KernelAdapter, density_from_pyro, vectorized_mcmc
from hmcvi.sampling.convergence import bulk_ess
from tests.support.pyro_models import EightSchoolsPosterior, eight_schools, logistic_data, logistic_regression

WARMUP, DRAWS = 500, 1000
ENOUGH = 1000  # effective draws

ENGINES: dict[str, Callable[[Any], Any]] = {
    "KernelAdapter(model, HMC)": lambda model: KernelAdapter(model, HMC),
    "NUTS": NUTS,
    "NUTS, jit_compile": lambda model: NUTS(model, jit_compile=True, ignore_jit_warnings=True),
}


def posteriors() -> Iterator[tuple[str, Callable[..., None], tuple[Any, ...], Moments]]:
    """Name, model, data, and moments of the unconstrained coordinates."""
    yield "eight schools", eight_schools, (), EightSchoolsPosterior().moments()
    data = logistic_data(200, 5)
    many = vectorized_mcmc(logistic_regression, HMC, *data, num_chains=64, num_samples=1000, seed=1)
    density = density_from_pyro(logistic_regression, *data)
    yield "logistic regression", logistic_regression, data, moments(density.unconstrain(many))


def measure(
    model: Callable[..., None], args: tuple[Any, ...], make: Callable[[Any], Any], seed: int, quick: bool
) -> tuple[float, torch.Tensor]:
    """CPU seconds of a whole run, and its draws in unconstrained coordinates.  [n, d]"""
    pyro.set_rng_seed(seed)
    began = time.process_time()
    warmup, count = (10, 20) if quick else (WARMUP, DRAWS)
    mcmc = MCMC(make(model), count, warmup_steps=warmup, disable_progbar=True)
    mcmc.run(*args)
    samples = mcmc.get_samples()
    return time.process_time() - began, density_from_pyro(model, *args).unconstrain(samples)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--quick", action="store_true", help="a few draws: shows that it runs")


def run(args: argparse.Namespace) -> Iterator[Record]:
    for name, model, data, reference in posteriors():
        for seed in args.seeds:
            for engine, make in ENGINES.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    took, draws = measure(model, data, make, seed, args.quick)
                ess = float(bulk_ess(draws[None]).min())
                wrong = errors(moments(draws), reference)
                yield {
                    "posterior": name,
                    "engine": engine,
                    "seed": seed,
                    "cpu seconds": round(took, 2),
                    "least bulk ESS": round(ess),
                    "cpu seconds to 1000": round(took * ENOUGH / ess, 2),
                    "error of means": round(wrong["means"], 3),
                    "error of log sds": round(wrong["log sds"], 3),
                }
