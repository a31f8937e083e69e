"""Where approximate Bayesian computation fails on the path of a Lotka–Volterra simulator, and where it runs.

Counted are the simulations of the prior that come near the path, or near nine summaries of it, and the
accepted proposals of ABC-MCMC, which simulates the whole path afresh for each.  With summaries, new noise and
a random walk of the parameters in turn (APM MI+MH in the space of inputs) do mix.  Slices on ellipses run on
the whole path, for a picture of what they take for near.  Written are result.json, figure.png and
figure-paths.png.  [Graham & Storkey 2017, figure 2a; Graham 2018, §4.10.2, figures 4.9 and 4.10]
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from torch import Tensor

from experiments.generators.figure import draw_paths, draw_posteriors
from experiments.generators.lotka_volterra import NUM_STEPS, SETTINGS, configure, read, simulated, slices
from experiments.models import lotka_volterra
from experiments.models.lotka_volterra import LARGEST, TRUTH, summaries
from experiments.pseudo_marginal.runs import longest_run, rejections
from experiments.report import acceptance_rates, describe, timed, timed_draws, write
from hmcvi.kernels import ConstrainedHMC, Gibbs, IndependentMetropolis, RandomWalkMetropolis
from hmcvi.kernels import SimulatorMetropolis as Simulator
from hmcvi.models import Generator
from hmcvi.models.abc import abc_density
from hmcvi.sampling import sample

__all__ = ["configure", "run"]

PARAMETERS = slice(0, 4)  # of the inputs; the others are the noise of the path
BATCH = 10_000
RADII = {"path": (1000.0, 100.0, 10.0), "summaries": (2.0, 1.0)}
WALK = 0.01  # of ABC-MCMC, in standard deviations of the prior
SHOWN = (10.0, 100.0)  # radii of which a path is drawn
SIZES = {
    "simulations": 1_000_000,
    "num_chains": 200,
    "updates": 1_000,
    "warmup": 1_500,
    "draws": 400,
    "thin": 5,
    "slices": 150,
}
QUICK_SIZES = {
    "simulations": 20_000,
    "num_chains": 4,
    "updates": 10,
    "warmup": 10,
    "draws": 20,
    "thin": 1,
    "slices": 10,
}


@torch.no_grad()
def prior(generator: Generator, observed: Tensor, count: int, seed: int) -> tuple[Tensor, dict[str, Any]]:
    """Simulate the prior: the spread of summaries [9], and how many simulations come near, by what measure.

    The spread is that of simulations which stay finite and below 10⁵.
    """
    rng, distances, kept = torch.Generator().manual_seed(seed), [], []
    for size in torch.arange(count).split(BATCH):
        path = generator.observed(generator.sample(len(size), generator=rng))
        distances.append((path - observed).norm(dim=-1).nan_to_num(math.inf))
        kept.append(summaries(path[(path.abs() < LARGEST).all(-1)]))
    values = torch.cat(kept)
    values = values[values.isfinite().all(-1)]
    spread = values.std(0)
    near = {"path": torch.cat(distances), "summaries": ((values - summaries(observed)) / spread).norm(dim=-1)}
    report = {
        name: {
            "nearest": float(near[name].min()),
            "accepted": {f"{epsilon:g}": int((near[name] < epsilon).sum()) for epsilon in RADII[name]},
        }
        for name in RADII
    }
    return spread, {"simulations": count, "finite": len(values), **report}


def afresh(
    generator: Generator, observed: Tensor, epsilon: float, initial: Tensor, updates: int, seed: int
) -> dict[str, Any]:
    """Accepted proposals of ABC-MCMC on the whole path, from inputs that give it exactly."""
    density = abc_density(generator, observed, epsilon, "uniform")
    kernel = Simulator(density, generator, slice(PARAMETERS.stop, None), WALK)
    draws, seconds = timed(sample, kernel, initial, updates, seed=seed, progress=False, check=False)
    return {
        "updates": updates * len(initial),
        "accepted": int(draws.stats["accepted"].sum()),
        "longest_run_of_rejections": longest_run(rejections(draws.stats)),
        "seconds": seconds,
    }


def noise_and_walk(
    generator: Generator, observed: Tensor, spread: Tensor, initial: Tensor, sizes: dict[str, int], seed: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Draw parameters given summaries within 1 of those observed, by new noise and a random walk in turn."""
    density = abc_density(generator, observed, 1.0, "uniform", lambda path: summaries(path) / spread)
    noise = torch.distributions.Independent(
        torch.distributions.Normal(torch.zeros(2 * NUM_STEPS, dtype=torch.float64), 1.0), 1
    )
    kernel = Gibbs(
        [
            (slice(PARAMETERS.stop, None), IndependentMetropolis(density, noise)),
            (PARAMETERS, RandomWalkMetropolis(density, 0.3)),
        ]
    )
    draws, seconds, warmup_seconds = timed_draws(
        kernel, initial, sizes["draws"], sizes["warmup"], seed, sizes["thin"]
    )
    parameters = {name: values[:, 1:].clone() for name, values in generator.latent(draws.position).items()}
    report = {
        "seconds": seconds,
        "warmup_seconds": warmup_seconds,
        "acceptance": {name: float(rate.mean()) for name, rate in acceptance_rates(draws.stats).items()},
        "parameters": {name: describe(values) for name, values in parameters.items()},
        "share_beyond_truth": {
            name: float((parameters[name] < value).double().mean())
            for name, value in zip(parameters, TRUTH, strict=True)
        },
    }
    return parameters, report


def run(args: argparse.Namespace) -> int:
    sizes, stored = QUICK_SIZES if args.quick else SIZES, args.data is not None
    generator = lotka_volterra(NUM_STEPS, eats_new_prey=stored)
    observed = read(args.data) if stored else simulated(generator)
    (spread, near), seconds = timed(prior, generator, observed, sizes["simulations"], args.seed)
    print(f"rejection: {near['path']['accepted']} near the path, {near['summaries']['accepted']}", flush=True)
    constrained = ConstrainedHMC(generator, observed, num_steps=1, **SETTINGS)
    initial = constrained.find_initial(sizes["num_chains"], args.seed)
    chains = {}
    for epsilon in RADII["path"]:
        chains[f"{epsilon:g}"] = afresh(generator, observed, epsilon, initial, sizes["updates"], args.seed)
        print(f"ABC-MCMC, ε = {epsilon:g}: {chains[f'{epsilon:g}']}", flush=True)
    parameters, report = noise_and_walk(generator, observed, spread, initial, sizes, args.seed)
    truth = {f"z{index}": rate for index, rate in enumerate(TRUTH, 1)}
    found = {
        "settings": {"seed": args.seed, "num_steps": NUM_STEPS, "truth": truth, "walk": WALK, **sizes},
        "spread": spread.tolist(),
        "rejection": {**near, "seconds": seconds},
        "abc_mcmc": chains,
        "apm_abc": report,
    }
    figure = write(args.out, found)
    draw_posteriors(parameters, truth, figure)
    paths = {}
    for epsilon in SHOWN:
        kernel = slices(generator, observed, epsilon, "uniform")
        drawn = sample(kernel, initial[:1], sizes["slices"], seed=args.seed, progress=False, check=False)
        paths[f"ABC slices, ε = {epsilon:g}"] = generator.observed(drawn.position[0, -1])
    draw_paths(observed, paths, figure.with_name("figure-paths.png"))
    return 0
