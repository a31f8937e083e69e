"""The rates of a Lotka–Volterra simulator from its path, exactly, from nine summaries of it, and by ABC.

Constrained HMC conditions on every value of the path, or on summaries of it; slice sampling on ellipses and
HMC move the inputs of simulations that come near it.  All others start where constrained HMC on the path has
ended.  The reference is importance sampling with the likelihood of the path, whose increments are normal.
Written are result.json and figure.png.
[Graham & Storkey 2017, figure 2; Graham 2018, §4.10.2, figures 4.11 and 4.12]
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.generators.figure import draw
from experiments.generators.reference import lotka_volterra_likelihood, reference
from experiments.generators.runs import Method, race_all, result
from experiments.models import lotka_volterra
from experiments.models.lotka_volterra import TRUTH, spread_of_summaries, summaries
from experiments.report import configure_with_quick, write
from hmcvi.data import DataError
from hmcvi.kernels import HMC, ConstrainedHMC, EllipticalSlice, Gibbs
from hmcvi.models import Generator
from hmcvi.models.abc import abc_density

NUM_STEPS = 50
JITTER = 0.334  # of the number of leapfrogs: from 2/3 to 4/3 of it
SETTINGS: dict[str, Any] = {"step_size": 0.25, "num_geodesic": 3}
# Warm-up finds larger steps than the thesis': so many make its trajectories, of a time of 1 to 2.  With its 4
# to 8 they come back to where they started, and mix the spread of the draws slowly.
ALL_STEPS, SUMMARY_STEPS = (1, 2), (2, 4)
FILES = ("lotka-volterra-prey-sequence.csv", "lotka-volterra-predator-sequence.csv")
SIZES = {
    "num_chains": 16,
    "warmup": 60,
    "all": 600,
    "summaries": 400,
    "slices": 800,
    "hmc": 500,
    "simulations": 1_000_000,
    "reference": 100_000,
}
QUICK_SIZES = {
    "num_chains": 4,
    "warmup": 3,
    "all": 4,
    "summaries": 4,
    "slices": 8,
    "hmc": 4,
    "simulations": 5_000,
    "reference": 1000,
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
        if not (folder / name).exists():
            raise DataError(f"there is no {folder / name}: --data names the folder with the two sequences")
        with open(folder / name) as file:
            rows = list(csv.reader(file, delimiter=" "))[1:]
        columns.append(torch.tensor([float(row[1]) for row in rows], dtype=torch.float64))
    if {len(column) for column in columns} != {NUM_STEPS}:
        raise DataError(f"both files must hold {NUM_STEPS} values, they hold {[len(c) for c in columns]}")
    return torch.stack(columns, -1).flatten()


def methods(
    generator: Generator, observed: Tensor, constrained: ConstrainedHMC, sizes: dict[str, int], seed: int
) -> dict[str, Method]:
    """With the trajectories of the thesis; warm-up tunes the step sizes."""
    spread = spread_of_summaries(generator, sizes["simulations"], seed)
    brief, summary = generator.then(lambda path: summaries(path) / spread), summaries(observed) / spread
    found = {
        "constrained HMC, all": Method(constrained, generator, observed, sizes["warmup"], sizes["all"]),
        "constrained HMC, summaries": Method(
            ConstrainedHMC(brief, summary, num_steps=SUMMARY_STEPS, **SETTINGS),
            brief,
            summary,
            sizes["warmup"],
            sizes["summaries"],
        ),
    }
    thin = max(1, sizes["slices"] // 500)
    for epsilon, kernel in ((10.0, "uniform"), (100.0, "uniform"), (10.0, "gaussian")):
        found[f"ABC slices, {kernel}, ε = {epsilon:g}"] = Method(
            slices(generator, observed, epsilon, kernel),
            generator,
            observed,
            sizes["slices"],
            sizes["slices"] // thin,
            thin,
        )
    hmc = HMC(abc_density(generator, observed, 10.0), 2.5e-3, 15, jitter=JITTER)
    found["ABC-HMC, gaussian, ε = 10"] = Method(hmc, generator, observed, sizes["hmc"], sizes["hmc"])
    return found


def slices(generator: Generator, observed: Tensor, epsilon: float, kernel: str) -> Gibbs:
    """Slices on ellipses, of the inputs for the rates and of those for the noise in turn."""
    density = abc_density(generator, observed, epsilon, kernel)
    return Gibbs([(slice(0, 4), EllipticalSlice(density)), (slice(4, None), EllipticalSlice(density))])


def run(args: argparse.Namespace) -> int:
    sizes, stored = QUICK_SIZES if args.quick else SIZES, args.data is not None
    # the stored path was made with predators that eat the new prey
    generator = lotka_volterra(NUM_STEPS, eats_new_prey=stored)
    observed = read(args.data) if stored else simulated(generator)
    constrained = ConstrainedHMC(generator, observed, num_steps=ALL_STEPS, **SETTINGS)
    initial = constrained.find_initial(sizes["num_chains"], args.seed)
    outcomes = race_all(methods(generator, observed, constrained, sizes, args.seed), initial, args.seed)
    likelihood = lotka_volterra_likelihood(observed, eats_new_prey=stored)
    near = outcomes["constrained HMC, all"].position
    exact = reference(generator, likelihood, near, sizes["reference"], args.seed)
    truth = {f"z{index}": rate for index, rate in enumerate(TRUTH, 1)}
    settings = {"seed": args.seed, "num_steps": NUM_STEPS, "truth": truth, **sizes}
    found = result(settings, observed, outcomes, exact)
    figure = write(args.out, found)
    draw(outcomes, exact, found["methods"], truth, figure)
    return 0
