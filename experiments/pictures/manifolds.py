"""Bridges and manifolds in pictures: tempered densities, an ABC ridge, a fibre in two parts and one in one.

a: densities between a normal base and a target with two modes.  b: the path of HMC on an ABC density swings
across the ridge around {u : g(u) = y}; constrained HMC moves along the manifold itself.  c: a manifold of two
parts, between which constrained dynamics cannot pass.  d: with noise added to the generator it is connected,
and chains pass.  Written are figure.png and result.json, the numbers behind it.
[after Graham 2018, figures 2.13, 4.3 and 4.4]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.pictures import contours, plain
from experiments.report import BLUE, DARK, GREEN, GREY, RED, configure, save_figure, title, write
from hmcvi.dynamics.energies import System
from hmcvi.dynamics.integrators import leapfrog
from hmcvi.kernels import ConstrainedHMC, IdentityMetric
from hmcvi.models import Generator
from hmcvi.models.abc import abc_density
from hmcvi.models.generator import Variables
from hmcvi.models.inputs import Normal
from hmcvi.sampling import sample

__all__ = ["configure", "run"]

F64 = torch.float64
RIDGE, NOISE = 0.15, 0.5  # ε of the ABC density and of the noisy generator
NUM_LEAPFROG, LEAPFROG_STEP = 120, 0.04
NUM_CHAINS, NUM_DRAWS, NUM_SHOWN = 20, 500, 400


def bridge(x: Tensor, beta: float) -> Tensor:
    """log of q^{1−β} γ^β, normalised on the grid; q = N(0, 2²), γ a mixture of two normals.  [n] -> [n]"""
    base = -0.5 * (x / 2).square()
    target = torch.logaddexp(-0.5 * ((x + 2) / 0.4).square(), -0.5 * ((x - 1.5) / 0.4).square())
    log_prob = (1 - beta) * base + beta * target
    return log_prob - log_prob.logsumexp(0) - (x[1] - x[0]).log()


def curved() -> Generator:
    """x = z² / 2 + z / 2 + n: the manifold of an observation is a parabola in the plane of z and n."""

    def observe(v: Variables) -> Tensor:
        return (0.5 * v["z"] * (v["z"] + 1) + v["n"])[..., None]

    return Generator({"z": Normal(), "n": Normal()}, observe, lambda v: {"z": v["z"]})


def saddle(noise: float = 0.0) -> Generator:
    """x = u₁² − u₂² + ε n, the n left out for ε = 0.  [Graham 2018, (4.51)]"""

    def observe(v: Variables) -> Tensor:
        value = v["u1"].square() - v["u2"].square()
        return (value + noise * v["n"] if noise else value)[..., None]

    inputs = {"u1": Normal(), "u2": Normal()} | ({"n": Normal()} if noise else {})
    return Generator(inputs, observe, lambda v: {"u1": v["u1"]})


def run(args: argparse.Namespace) -> int:
    figure = Figure(figsize=(11, 9), layout="constrained")
    panels = figure.subplots(2, 2)
    draw_bridge(panels[0, 0])
    result: dict[str, Any] = {"ridge": draw_ridge(panels[0, 1])}
    crossings = {}
    for axes, noise, text in (
        (panels[1, 0], 0.0, "c  $u_1^2 - u_2^2 = 1$: two parts"),
        (panels[1, 1], NOISE, f"d  $u_1^2 - u_2^2 + {NOISE:g}\\,n = 1$, seen from above: one"),
    ):
        crossings[f"noise {noise:g}"] = draw_saddle(axes, noise, text, args.seed)
    result["share_of_chains_that_crossed"] = crossings
    save_figure(figure, write(args.out, result))
    return 0


def draw_bridge(axes: Axes) -> None:
    x = torch.linspace(-7, 6, 600, dtype=F64)
    for k in range(6):
        axes.plot(x, bridge(x, k / 5).exp(), color=BLUE, alpha=0.15 + 0.17 * k, label=f"β = {k / 5:g}")
    axes.set(xlabel="x", ylabel="density")
    axes.legend(fontsize=8)
    title(axes, "a  From a base with one mode to a target with two")


@torch.no_grad()
def draw_ridge(axes: Axes) -> dict[str, float]:
    """Draw both paths from one point; how often HMC changes sides."""
    generator, observed = curved(), torch.zeros(1, dtype=F64)
    density = abc_density(generator, observed, RIDGE)
    start = torch.tensor([1.2, -1.32], dtype=F64)  # on the manifold
    contours(axes, density.log_prob, (-2.6, 2), (-2.4, 1), (0.5, 2.0, 4.5))
    grid = torch.linspace(-3, 2.2, 200, dtype=F64)
    axes.plot(grid, -0.5 * grid * (grid + 1), "--", color=DARK, linewidth=1, label="g(u) = y")
    system = System(density, IdentityMetric())
    state = system.at(start)._replace(momentum=torch.tensor([0.8, 1.6], dtype=F64))
    path = [state.position]
    for _ in range(NUM_LEAPFROG):
        state = leapfrog(system, state, torch.tensor(LEAPFROG_STEP, dtype=F64), 1)
        path.append(state.position)
    swinging = torch.stack(path)
    kernel = ConstrainedHMC(generator, observed, step_size=0.3, num_steps=1, num_geodesic=2)
    draws = sample(kernel, start[None], 30, seed=3, progress=False, check=False)
    along = torch.cat([start[None], draws.position[0]])
    axes.plot(*swinging.T, color=RED, linewidth=1, label="HMC, one trajectory")
    axes.plot(*along.T, "o", color=BLUE, markersize=3, label="constrained HMC, 30 transitions")
    axes.set(xlabel="z", ylabel="n", xlim=(-2.6, 2), ylim=(-2.4, 1))
    axes.legend(fontsize=8, loc="lower center")
    plain(axes, f"b  A ridge of ε = {RIDGE:g} around the manifold")
    side = generator.observed(swinging)[:, 0].sign()
    distance = (generator.observed(along) - observed).abs().max()
    return {
        "changes_of_side": int((side[1:] != side[:-1]).sum()),
        "leapfrog_steps": NUM_LEAPFROG,
        "largest_distance_of_constrained_draws": float(distance),
    }


def draw_saddle(axes: Axes, noise: float, text: str, seed: int) -> float:
    """Draw chains that start on the right side; the share of them that were on the left side once."""
    generator, observed = saddle(noise), torch.ones(1, dtype=F64)
    kernel = ConstrainedHMC(generator, observed, step_size=0.3, num_steps=(3, 6), num_geodesic=2)
    start = torch.zeros(NUM_CHAINS, generator.dim, dtype=F64)
    start[:, 0] = 1.0
    draws = sample(kernel, start, NUM_DRAWS, seed=seed, progress=False, check=False).position
    grid = torch.linspace(-2.5, 2.5, 200, dtype=F64)
    for sign in (-1, 1):
        axes.plot(sign * (1 + grid.square()).sqrt(), grid, color=DARK, linestyle="--", linewidth=1)
    axes.plot(*draws[:, :NUM_SHOWN, :2].flatten(0, 1).T, ".", color=GREEN, markersize=1, alpha=0.3)
    axes.plot(
        *draws[0, :40, :2].T, "-", color=BLUE, linewidth=0.8, label="the first 40 transitions of a chain"
    )
    axes.axvline(0, color=GREY, linewidth=0.6)
    axes.set(xlabel="$u_1$", ylabel="$u_2$", xlim=(-3, 3), ylim=(-2.7, 2.7))
    axes.legend(fontsize=8, loc="upper center")
    plain(axes, text)
    return float((draws[..., 0] < 0).any(1).double().mean())
