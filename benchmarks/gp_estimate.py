"""Time of one density estimate of a Gaussian process with probit labels against the factorisations it needs.

    python benchmarks/gp_estimate.py [--repeats R] [--threads N]

449 points with nine features, 50 importance samples, ten chains at draws from the prior.  An estimate fits
Laplace's approximation (`prepare`) and weighs samples of it (`log_estimate`).  It needs two Cholesky
factorisations in double precision and the steps of Newton's method, which are timed by themselves.  Prints
one JSON line: milliseconds per chain and the median ratio, with its spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

POINTS, FEATURES, CHAINS, IMPORTANCE = 449, 9, 10, 50


def milliseconds(work: Callable[[], object]) -> float:
    """Per chain."""
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began) / CHAINS


def measure(repeats: int) -> dict[str, object]:
    import torch

    from hmcvi.models.gaussian_process import ProbitProcess

    generator = torch.Generator().manual_seed(0)
    features = torch.rand(POINTS, FEATURES, generator=generator, dtype=torch.float64)
    labels = (features.sum(-1) + 0.3 * torch.randn(POINTS, generator=generator) > FEATURES / 2).double()
    process = ProbitProcess(10 * features, labels, num_importance=IMPORTANCE)
    x = process.sample_prior(CHAINS, generator=generator)
    u = torch.randn(CHAINS, process.auxiliary_dim, generator=generator, dtype=torch.float64)
    covariance = process.covariance(x)
    fit = process.prepare(x)
    single, log_scale = covariance.float(), x[:, 0].float()
    works: dict[str, Callable[[], object]] = {
        "estimate": lambda: process.log_estimate(x, u, process.prepare(x)),
        "estimate_again": lambda: process.log_estimate(x, u, fit),
        "factorisation": lambda: torch.linalg.cholesky_ex(covariance),
        "newton": lambda: process.near_mode(single, log_scale),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(milliseconds(work))
    needed = [2 * a + b for a, b in zip(times["factorisation"], times["newton"], strict=True)]
    ratios = [a / b for a, b in zip(times["estimate"], needed, strict=True)]
    return {
        "benchmark": "gp_estimate",
        "threads": torch.get_num_threads(),
        "ms": {name: round(statistics.median(values), 2) for name, values in times.items()},
        "ratio": round(statistics.median(ratios), 2),
        "ratio_spread": [round(min(ratios), 2), round(max(ratios), 2)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    print(json.dumps(measure(args.repeats)))


if __name__ == "__main__":
    main()
