"""Time of a density estimate of a Gaussian process with probit labels against what it cannot do without.

449 points with nine features, 50 importance samples, ten chains at draws from the prior.  An estimate fits
Laplace's approximation (`prepare`) and weighs samples of it (`log_estimate`).  It needs two Cholesky
factorisations in double precision and the steps of Newton's method, which are timed by themselves.  One
record: milliseconds per chain, and the ratio of the first to the second.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.measuring import (
    Record,
    quickly,
    ratios,
    repeatable,
    seconds,
    set_threads,
    spread,
    take_turns,
)

FEATURES, CHAINS, IMPORTANCE = 9, 10, 50


def configure(parser: argparse.ArgumentParser) -> None:
    repeatable(parser, 15, threads=1)
    quickly(parser)


def works(points: int) -> dict[str, Callable[[], object]]:
    import torch

    from experiments.models.gaussian_process import ProbitProcess

    generator = torch.Generator().manual_seed(0)
    features = torch.rand(points, FEATURES, generator=generator, dtype=torch.float64)
    labels = (features.sum(-1) + 0.3 * torch.randn(points, generator=generator) > FEATURES / 2).double()
    process = ProbitProcess(10 * features, labels, num_importance=IMPORTANCE)
    x = process.sample_prior(CHAINS, generator=generator)
    u = torch.randn(CHAINS, process.auxiliary_dim, generator=generator, dtype=torch.float64)
    covariance = process.covariance(x)
    fit = process.prepare(x)
    single, log_scale = covariance.float(), x[:, 0].float()
    return {
        "estimate": lambda: process.log_estimate(x, u, process.prepare(x)),
        "estimate_again": lambda: process.log_estimate(x, u, fit),
        "factorisation": lambda: torch.linalg.cholesky_ex(covariance),
        "newton": lambda: process.near_mode(single, log_scale),
    }


def run(args: argparse.Namespace) -> Iterator[Record]:
    set_threads(args.threads)
    parts = works(40 if args.quick else 449)
    for work in parts.values():
        work()
    times = take_turns({name: partial(seconds, work) for name, work in parts.items()}, args.repeats)
    needed = [2 * a + b for a, b in zip(times["factorisation"], times["newton"], strict=True)]
    yield {
        "threads": args.threads,
        "repeats": args.repeats,
        "ms_per_chain": {name: spread(1e3 * t / CHAINS for t in own) for name, own in times.items()},
        "ratio": spread(ratios(times["estimate"], needed), at_most=1.5),
    }
