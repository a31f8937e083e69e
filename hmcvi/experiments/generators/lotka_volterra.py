"""The rates of a Lotka–Volterra simulator from its path, exactly, from nine summaries of it, and by ABC.

Constrained HMC conditions on every value of the path, or on summaries of it; slice sampling on ellipses and
HMC move the inputs of simulations that come near it.  All chains start where constrained HMC has settled.
Written are result.json and figure.png.  [Graham 2018, §4.10.2, figures 4.11 and 4.12]
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmcvi.experiments.generators.runs import Method, exact_starts, race, settle
from hmcvi.experiments.results import configure_with_quick, write
from hmcvi.kernels import HMC, ConstrainedHMC, EllipticalSlice, Gibbs
from hmcvi.models import Generator, lotka_volterra
from hmcvi.models.abc import abc_density
from hmcvi.models.lotka_volterra import TRUTH, spread_of_summaries, summaries

NUM_STEPS = 50
HALF = 0.334  # jitter of the number of leapfrogs: from 2/3 to 4/3 of it
FILES = ("lotka-volterra-prey-sequence.csv", "lotka-volterra-predator-sequence.csv")
SIZES = {
    "num_chains": 64,
    "settling": 30,
    "all": 300,
    "summaries": 60,
    "slices": 3000,
    "hmc": 1000,
    "simulations": 1_000_000,
}
QUICK_SIZES = {
    "num_chains": 4,
    "settling": 8,
    "all": 6,
    "summaries": 4,
    "slices": 8,
    "hmc": 4,
    "simulations": 20_000,
}


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_quick(parser)
    parser.add_argument(
        "--data", type=Path, help=f"folder with {' and '.join(FILES)}; else the path is simulated"
    )


def simulated(generator: Generator) -> Tensor:
    """The path of the true rates, always the same.  [100]"""
    noise = torch.randn(2 * NUM_STEPS, dtype=torch.float64, generator=torch.Generator().manual_seed(1234))
    rates = torch.tensor(TRUTH, dtype=torch.float64).log() + 2
    return generator.observed(torch.cat([rates, noise]))


def read(folder: Path) -> Tensor:
    """r₁, f₁, r₂, …  of the two files  [100]"""
    columns = []
    for name in FILES:
        with open(folder / name) as file:
            rows = list(csv.reader(file, delimiter=" "))[1:]
        columns.append(torch.tensor([float(row[1]) for row in rows], dtype=torch.float64))
    if {len(column) for column in columns} != {NUM_STEPS}:
        raise ValueError(f"both files must hold {NUM_STEPS} values, they hold {[len(c) for c in columns]}")
    return torch.stack(columns, -1).flatten()


def methods(generator: Generator, observed: Tensor, sizes: dict[str, int], seed: int) -> dict[str, Method]:
    """With the settings of the thesis; the numbers of transitions are for many chains at once."""
    settings: dict[str, Any] = {"step_size": 0.25, "num_steps": (4, 8), "num_geodesic": 3}
    spread = spread_of_summaries(generator, sizes["simulations"], seed)
    summarised = generator.then(lambda path: summaries(path) / spread)
    found = {
        "constrained HMC, all": Method(ConstrainedHMC(generator, observed, **settings), 10, sizes["all"]),
        "constrained HMC, summaries": Method(
            ConstrainedHMC(summarised, summaries(observed) / spread, **settings),
            sizes["summaries"] // 10,
            sizes["summaries"],
        ),
    }
    thin = max(1, sizes["slices"] // 500)
    for epsilon, kernel in ((10.0, "uniform"), (100.0, "uniform"), (10.0, "gaussian")):
        density = abc_density(generator, observed, epsilon, kernel)
        blocks = Gibbs([(slice(0, 4), EllipticalSlice(density)), (slice(4, None), EllipticalSlice(density))])
        name = f"ABC slices, {kernel}, ε = {epsilon:g}"
        found[name] = Method(blocks, sizes["slices"], sizes["slices"] // thin, thin)
    hmc = HMC(abc_density(generator, observed, 10.0), 2.5e-3, 15, jitter=HALF)
    found["ABC-HMC, gaussian, ε = 10"] = Method(hmc, sizes["hmc"], sizes["hmc"])
    return found


def run(args: argparse.Namespace) -> int:
    from hmcvi.experiments.generators.figure import draw

    sizes = QUICK_SIZES if args.quick else SIZES
    # the stored path was made with predators that eat the new prey
    generator = lotka_volterra(NUM_STEPS, eats_new_prey=args.data is not None)
    observed = simulated(generator) if args.data is None else read(args.data)
    all_methods = methods(generator, observed, sizes, args.seed)
    constrained = all_methods["constrained HMC, all"].kernel
    assert isinstance(constrained, ConstrainedHMC)
    start = exact_starts(constrained, sizes["num_chains"], args.seed)
    start = settle(constrained, start, sizes["settling"], args.seed)
    outcomes = {name: race(m, generator, observed, start, args.seed) for name, m in all_methods.items()}
    reports: dict[str, Any] = {name: outcome.report() for name, outcome in outcomes.items()}
    truth = {f"z{index}": rate for index, rate in enumerate(TRUTH, 1)}
    settings = {"seed": args.seed, "num_steps": NUM_STEPS, "truth": truth, **sizes}
    result = {"settings": settings, "observed": observed.tolist(), "methods": reports}
    draw(outcomes, reports, truth, write(args.out, result))
    return 0
