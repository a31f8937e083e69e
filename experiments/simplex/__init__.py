"""Three ways to take the constraint off a simplex, by what HMC makes of Dirichlet distributions in each.

Every run has its step size, masses and trajectory length tuned in warm-up.  Written are result.json
(effective samples of x_k per leapfrog step and per CPU second, errors of means against leapfrog steps),
figure.png (per step), figure-seconds.png and figure-rmse.png.  [Jhajharia et al. 2022, figures 1 to 3]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Dirichlet

from experiments.report import configure_with_quick as configure
from experiments.report import timed_draws, write
from experiments.simplex.figure import draw_efficiency, draw_errors
from experiments.simplex.targets import CONCENTRATIONS, F64, TRANSFORMS, Coordinates, dirichlet
from hmcvi.kernels import HMC
from hmcvi.sampling.diagnostics import arviz

__all__ = ["configure", "run"]

SIZES, QUICK_SIZES = (10, 100, 1000), (10, 100)
NUM_CHAINS, NUM_WARMUP, NUM_DRAWS = 16, 300, 400
QUICK_CHAINS, QUICK_WARMUP, QUICK_DRAWS = 8, 150, 150
MAX_COMPONENTS = 30  # of which effective sample sizes are computed, evenly spaced
CHECKPOINTS = 30  # of the curves of errors
MEASURES = {"median": "ess_per_leapfrog", "least": "least_ess_per_leapfrog"}


def run(args: argparse.Namespace) -> int:
    sizes = QUICK_SIZES if args.quick else SIZES
    lengths = (QUICK_CHAINS, QUICK_WARMUP, QUICK_DRAWS) if args.quick else (NUM_CHAINS, NUM_WARMUP, NUM_DRAWS)
    records = []
    for concentration in CONCENTRATIONS:
        for size in sizes:
            for coordinates in TRANSFORMS:
                target = dirichlet(concentration, size)
                record = {"target": concentration, "size": size, "transform": coordinates.name}
                record |= measure(coordinates, target, size, lengths, args.seed)
                print(
                    f"{concentration}, K = {size}, {coordinates.name}: "
                    f"{record['ess_per_leapfrog']:.3g} effective samples per leapfrog step"
                )
                records.append(record)
    chains, num_warmup, num_draws = lengths
    settings = {"num_chains": chains, "num_warmup": num_warmup, "num_draws": num_draws, "seed": args.seed}
    path = write(args.out, {"settings": settings, "finding": finding(records), "runs": records})
    draw_efficiency(records, "ess_per_leapfrog", "effective samples per leapfrog step", path)
    draw_efficiency(
        records, "ess_per_second", "effective samples per CPU second", path.with_stem("figure-seconds")
    )
    draw_errors(records, path.with_stem("figure-rmse"))
    return 0


def measure(
    coordinates: Coordinates, target: Dirichlet, size: int, lengths: tuple[int, int, int], seed: int
) -> dict[str, Any]:
    """Warm up from scattered initial states, then draw: ESS of the components, errors of their means."""
    chains, num_warmup, num_draws = lengths
    generator = torch.Generator().manual_seed(seed)
    initial = torch.randn(chains, coordinates.dim(size), generator=generator, dtype=F64)
    kernel = HMC(coordinates.density(target), step_size=0.1)
    draws, seconds, _ = timed_draws(kernel, initial, num_draws, num_warmup, seed)
    x = coordinates.to_simplex(draws.position[:, 1:])
    steps = draws.stats["num_gradients"][:, 1:].double()
    shown = torch.linspace(0, size - 1, min(size, MAX_COMPONENTS)).long()
    ess = torch.tensor([float(arviz().ess(x[..., k].numpy())) for k in shown.tolist()], dtype=F64)
    return {
        "ess": float(ess.median()),
        "least_ess": float(ess.min()),
        "ess_per_leapfrog": float(ess.median() / steps.sum()),
        "least_ess_per_leapfrog": float(ess.min() / steps.sum()),
        "ess_per_second": float(ess.median() / seconds),
        "seconds": seconds,
        "leapfrogs_per_transition": float(steps.mean()),
        "acceptance_rate": float(draws.stats["acceptance_rate"][:, 1:].mean()),
        "num_diverged": int(draws.stats["diverged"][:, 1:].sum()),
        **errors(x, steps, target),
    }


def errors(x: Tensor, steps: Tensor, target: Dirichlet) -> dict[str, list[float]]:
    """RMSE over components and chains of running means, in standard deviations, against leapfrog steps.

    x: [chains, draws, K]; steps: [chains, draws]
    """
    counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
    means = x.cumsum(1) / counts
    rmse = ((means - target.mean) / target.stddev).square().mean((0, -1)).sqrt()
    at = (
        torch.logspace(0, torch.tensor(float(x.shape[1])).log10(), CHECKPOINTS).long().clamp(max=x.shape[1])
        - 1
    )
    work = steps.cumsum(1).mean(0)
    at = at.unique()
    return {"leapfrogs": work[at].tolist(), "rmse": rmse[at].tolist()}


def finding(records: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Effective samples per leapfrog step of each transform, as shares of the best, for each target.

    "median" is over components, "least" of the worst one, which decides when all of them are wanted.
    """
    found = {}
    for target in CONCENTRATIONS:
        for size in sorted({record["size"] for record in records}):
            runs = [r for r in records if (r["target"], r["size"]) == (target, size)]
            found[f"{target}, K = {size}"] = {
                name: shares({r["transform"]: r[key] for r in runs}) for name, key in MEASURES.items()
            }
    return found


def shares(values: dict[str, float]) -> dict[str, float]:
    """Each value by the largest, the largest first."""
    best = max(values.values())
    return {name: round(value / best, 3) for name, value in sorted(values.items(), key=lambda v: -v[1])}
