"""Jumps in pictures: an integer embedded in the line, and a particle that bounces off a step or climbs it.

Written are figure.png and result.json, the numbers behind it.  [after Gram-Hansen 2017, figures 1 and 2]
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.distributions import Poisson

from experiments.report import BLUE, DARK, GREY, ORANGE, configure, save_figure, title, write
from hmcvi.density import Density
from hmcvi.kernels import Counts, EmbeddedDensity, EventDrivenHMC

__all__ = ["configure", "run"]

F64 = torch.float64
RATE = 3.0  # of the Poisson distribution that is embedded
STEP = 1.5  # by how much −log γ rises at zero
START = -1.5
SPEEDS = {"over the step": 2.2, "back": 1.3}  # kinetic energies 2.42 and 0.85
TIME, NUM_FRAMES = 3.0, 301


def run(args: argparse.Namespace) -> int:
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    total = draw_embedding(left)
    paths = {name: path(speed) for name, speed in SPEEDS.items()}
    draw_potential(middle, paths)
    draw_phase(right, paths)
    result: dict[str, Any] = {
        "probability_under_the_embedding": total,
        "step": STEP,
        "paths": {name: summary(*states) for name, states in paths.items()},
    }
    save_figure(figure, write(args.out, result))
    return 0


def step(position: Tensor) -> Tensor:
    """log γ(x): zero to the left of the step, −STEP to its right.  [..., 1] -> [...]"""
    return torch.where(position[..., 0] > 0, -STEP, 0.0)


def path(speed: float) -> tuple[Tensor, Tensor, Tensor]:
    """Times, positions and velocities of a particle that sets out for the step.  [frames] each"""
    wall = torch.ones(1, 1, dtype=F64)
    walls = EventDrivenHMC(Density(step), wall, torch.zeros(1, dtype=F64), TIME).walls(wall[0])
    times = torch.linspace(0.0, TIME, NUM_FRAMES, dtype=F64)
    start = torch.full((NUM_FRAMES, 1), START, dtype=F64)
    end = walls.fly(start, torch.full_like(start, speed), times, 10)
    return times, end.position[:, 0], end.velocity[:, 0]


def summary(times: Tensor, position: Tensor, velocity: Tensor) -> dict[str, float]:
    """Where the particle ends, its speed on both sides, and how well its energy is kept."""
    energy = 0.5 * velocity.square() - step(position[:, None])
    return {
        "initial_velocity": float(velocity[0]),
        "final_velocity": float(velocity[-1]),
        "final_position": float(position[-1]),
        "largest_energy_error": float((energy - energy[0]).abs().max()),
    }


def draw_embedding(axes: Axes) -> float:
    """Draw the density of z that stands for n ~ Poisson, by logarithmic intervals; what it integrates to."""
    shapes: dict[str, tuple[int, ...]] = {"n": ()}
    prior = Poisson(torch.tensor(RATE, dtype=F64), validate_args=False)
    density = EmbeddedDensity(lambda v: prior.log_prob(v["n"]), shapes=shapes, discrete={"n": Counts()})
    counts = Counts()
    edges = counts.edge(torch.arange(12, dtype=F64))
    middles = (edges[1:] + edges[:-1]) / 2
    heights = density.log_prob(middles[:, None]).exp()
    axes.stairs(heights.numpy(), edges.numpy(), fill=True, color=BLUE, alpha=0.35)
    axes.stairs(heights.numpy(), edges.numpy(), color=BLUE, linewidth=1.0)
    for n, (middle, height) in enumerate(zip(middles.tolist(), heights.tolist(), strict=True)):
        if n < 7:
            axes.text(middle, height + 0.01, str(n), ha="center", fontsize=8, color=DARK)
    axes.set_xlabel("z; above each interval (log(1 + n), log(2 + n)] its n")
    axes.set_ylabel("density")
    title(axes, f"n ~ Poisson({RATE:g}) embedded in the line")
    return float((heights * edges.diff()).sum())


def draw_potential(axes: Axes, paths: dict[str, tuple[Tensor, Tensor, Tensor]]) -> None:
    """Draw the step, and the particles at their total energies."""
    axes.fill_between([-2, 0, 0, 4], [0, 0, STEP, STEP], -0.1, color=GREY, alpha=0.4, linewidth=0)
    for (name, (_, position, velocity)), color in zip(paths.items(), (BLUE, ORANGE), strict=True):
        energy = 0.5 * float(velocity[0]) ** 2
        x = position.numpy()
        axes.plot([x.min(), x.max()], [energy, energy], color=color, label=f"{name}: H = {energy:.2f}")
        axes.plot(x[-1], energy, ">" if velocity[-1] > 0 else "<", color=color)
        axes.plot(x[0], energy, "o", color=color)
    axes.set_xlabel("x")
    axes.set_ylabel("−log γ(x), and H")
    axes.set_ylim(-0.1, 3.4)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    title(axes, "a step, and what comes upon it")


def draw_phase(axes: Axes, paths: dict[str, tuple[Tensor, Tensor, Tensor]]) -> None:
    """Draw the velocity against the position, with the jump at the wall."""
    for (name, (_, position, velocity)), color in zip(paths.items(), (BLUE, ORANGE), strict=True):
        axes.plot(position.numpy(), velocity.numpy(), color=color, label=name)
        axes.plot(position[0], velocity[0], "o", color=color)
    axes.axvline(0.0, color=GREY, linestyle=":", linewidth=1.0)
    slower = math.sqrt(SPEEDS["over the step"] ** 2 - 2 * STEP)
    axes.annotate(f"√(v² − 2Δ) = {slower:.2f}", (0.6, slower - 0.45), fontsize=8, color=DARK)
    axes.set_xlabel("x")
    axes.set_ylabel("v")
    axes.set_ylim(-2.6, 2.6)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    title(axes, "the same in phase space")
