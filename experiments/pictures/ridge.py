"""Riemannian HMC against HMC on the ridge of an ABC density, x = z² / 2 + z / 2 + n observed within ε.

For each ε and each kernel the best of some step sizes, by effective draws of z per gradient of log γ; also
per Jacobian and per second of the processor.  Written are result.json and figure.png.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.pictures.manifolds import curved
from experiments.report import BLUE, ORANGE, configure, save_figure, timed, title, write
from hmcvi.density import Density
from hmcvi.kernels import HMC, GaussNewtonMetric, Kernel, RiemannianHMC
from hmcvi.models.abc import abc_density
from hmcvi.sampling import sample
from hmcvi.sampling.diagnostics import arviz

__all__ = ["configure", "run"]

F64 = torch.float64
OBSERVED = torch.tensor([1.0], dtype=F64)
EPSILONS = (0.5, 0.15)
HMC_STEPS, RIEMANNIAN_STEPS = (0.7, 1.2), (0.5, 1.0)  # in units of ε
NUM_CHAINS, NUM_BURN, NUM_DRAWS, NUM_STEPS = 40, 5, 40, 4


def run(args: argparse.Namespace) -> int:
    generator = curved()
    cases: dict[str, Any] = {}
    for epsilon in EPSILONS:
        density = abc_density(generator, OBSERVED, epsilon)
        metric = GaussNewtonMetric(generator.observed, epsilon)
        kernels: dict[str, list[Kernel]] = {
            "HMC": [HMC(density, step * epsilon, NUM_STEPS, compile=False) for step in HMC_STEPS],
            "Riemannian HMC": [
                RiemannianHMC(density, metric, step * epsilon, NUM_STEPS, max_iterations=20)
                for step in RIEMANNIAN_STEPS
            ],
        }
        start = initial(density, args.seed)
        cases[str(epsilon)] = {
            name: best([outcome(kernel, start, args.seed) for kernel in group])
            for name, group in kernels.items()
        }
    result = {"num_chains": NUM_CHAINS, "num_draws": NUM_DRAWS, "num_steps": NUM_STEPS, "epsilons": cases}
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw(left, cases, "ess_per_gradient", "effective draws per gradient of log γ")
    draw(right, cases, "ess_per_second", "effective draws per second")
    save_figure(figure, write(args.out, result))
    return 0


def initial(density: Density, seed: int) -> Tensor:
    """Points on the ridge: z ~ N(0, 1) and the n that gives what was observed.  [chains, 2]"""
    z = torch.randn(NUM_CHAINS, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return torch.stack([z, OBSERVED - 0.5 * z * (z + 1)], -1)


def outcome(kernel: Kernel, start: Tensor, seed: int) -> dict[str, float]:
    """Effective draws of z and what they cost, with the share of trajectories that were accepted."""
    burnt = sample(kernel, start, NUM_BURN, seed=seed, progress=False, check=False)
    draws, seconds = timed(burnt.resume, NUM_DRAWS, progress=False)
    kept = {name: value[:, NUM_BURN:].double() for name, value in draws.stats.items()}
    ess = float(arviz().ess(draws.position[:, NUM_BURN:, 0].numpy()))
    found = {
        "step_size": float(torch.as_tensor(kernel.step_size)),  # type: ignore[attr-defined]
        "acceptance_rate": float(kept["acceptance_rate"].mean()),
        "ess": ess,
        "ess_per_gradient": ess / float(kept["num_gradients"].sum()),
        "ess_per_second": ess / seconds,
    }
    if "num_jacobians" in kept:
        found["ess_per_jacobian"] = ess / float(kept["num_jacobians"].sum())
        found["solved"] = float(kept["solved"].mean())
    return found


def best(outcomes: list[dict[str, float]]) -> dict[str, Any]:
    """All, and the one with the most effective draws per gradient."""
    return {"best": max(outcomes, key=lambda found: found["ess_per_gradient"]), "all": outcomes}


def draw(axes: Axes, cases: dict[str, Any], measure: str, text: str) -> None:
    """Draw what the best of each kernel has, against ε."""
    for name, color in (("HMC", BLUE), ("Riemannian HMC", ORANGE)):
        heights = [cases[str(epsilon)][name]["best"][measure] for epsilon in EPSILONS]
        axes.loglog(EPSILONS, heights, "o-", color=color, label=name)
    axes.set_xlabel("ε")
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    title(axes, text)
