"""Hamiltonian Monte Carlo in pictures: trajectories, their energies, acceptance, and momenta that persist.

Written are figure.png and result.json, the numbers behind it.  [after Graham 2018, figure 2.12]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.pictures import CORRELATION, Recording, contours, narrow, plain
from experiments.report import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    configure,
    save_figure,
    title,
    write,
)
from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.energies import System
from hmcvi.dynamics.integrators import leapfrog
from hmcvi.kernels import HMC, IdentityMetric
from hmcvi.sampling import sample
from hmcvi.sampling.diagnostics import arviz

__all__ = ["configure", "run"]

F64 = torch.float64
TAIL = 0.4  # α of p(x) = α e^{−αx} (1 + e^{−x})^{−1−α}
PERSISTENCES = (0.0, 0.95)
NUM_CHAINS, NUM_DRAWS, NUM_SHOWN = 64, 1000, 60


def skewed(position: Tensor) -> Tensor:
    """log p(x) of the generalised logistic distribution.  [..., 1] -> [...]"""
    x = position[..., 0]
    return -TAIL * x - (1 + TAIL) * torch.nn.functional.softplus(-x)


def banana(position: Tensor) -> Tensor:
    """x ~ N(0, 1),  y | x ~ N(x²/2, 0.4²).  [..., 2] -> [...]"""
    x, y = position.unbind(-1)
    return -0.5 * x.square() - 0.5 * ((y - 0.5 * x.square()) / 0.4).square()


def run(args: argparse.Namespace) -> int:
    generator = torch.Generator().manual_seed(args.seed)
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplot_mosaic([["phase", "energy", "energy"], ["banana", "fresh", "kept"]])
    paths = two_trajectories(generator)
    draw_phase_space(panels["phase"], paths)
    result: dict[str, Any] = {"trajectories": draw_energies(panels["energy"], paths)}
    result["acceptance"] = draw_acceptance(panels["banana"], generator)
    result["persistence"] = {
        str(persistence): draw_persistence(panels[panel], persistence, letter, generator, args.seed)
        for persistence, panel, letter in zip(PERSISTENCES, ("fresh", "kept"), "de", strict=True)
    }
    save_figure(figure, write(args.out, result))
    return 0


@torch.no_grad()
def two_trajectories(generator: torch.Generator) -> list[list[Phase]]:
    """Take leapfrog steps of one chain; between the two trajectories the momentum is drawn anew."""
    system = System(Density(skewed), IdentityMetric())
    state = system.at(torch.tensor([-1.5], dtype=F64))._replace(momentum=torch.tensor([1.6], dtype=F64))
    paths = []
    for num_steps in (11, 20):
        path = [state]
        for _ in range(num_steps):
            path.append(leapfrog(system, path[-1], torch.tensor(0.35, dtype=F64), 1))
        paths.append(path)
        state = path[-1]._replace(momentum=torch.randn(1, dtype=F64, generator=generator))
    return paths


def draw_phase_space(axes: Axes, paths: list[list[Phase]]) -> None:
    def minus_energy(point: Tensor) -> Tensor:
        return skewed(point[..., :1]) - 0.5 * point[..., 1].square()

    contours(axes, minus_energy, (-5, 11), (-3.2, 3.2), (0.1, 0.4, 0.9, 1.6, 2.5, 3.6, 4.9))
    for path, color, name in zip(paths, (ORANGE, PURPLE), ("first", "second"), strict=True):
        x = [float(state.position) for state in path]
        v = [float(state.momentum) for state in path if state.momentum is not None]
        axes.plot(x, v, "-o", color=color, markersize=3.5, linewidth=1, label=f"{name} trajectory")
        axes.plot(x[0], v[0], "s", color=color, markersize=8, markeredgecolor=DARK)
        axes.plot(x[-1], v[-1], "^", color=color, markersize=9, markeredgecolor=DARK)
    axes.set(xlabel="position x", ylabel="momentum v", xlim=(-5, 11), ylim=(-3.2, 3.2))
    title(axes, "a  Along a level of H; then a new momentum")
    axes.legend(fontsize=8, loc="lower right", framealpha=0.95)
    axes.tick_params(labelsize=8)


def draw_energies(axes: Axes, paths: list[list[Phase]]) -> list[dict[str, Any]]:
    numbers: list[dict[str, Any]] = []
    first = 0
    for path, color in zip(paths, (ORANGE, PURPLE), strict=True):
        potential = [-float(state.log_prob) for state in path if state.log_prob is not None]
        kinetic = [0.5 * float(state.momentum) ** 2 for state in path if state.momentum is not None]
        total = [a + b for a, b in zip(potential, kinetic, strict=True)]
        steps = range(first, first + len(path))
        named = first == 0
        for values, style, label in (
            (total, "-", "H, total"),
            (potential, "--", "−log γ(x), potential"),
            (kinetic, ":", "v²/2, kinetic"),
        ):
            axes.plot(steps, values, style, color=color, linewidth=2, label=label if named else None)
        axes.plot(steps[0], total[0], "s", color=color, markersize=7, markeredgecolor=DARK)
        axes.plot(steps[-1], total[-1], "^", color=color, markersize=8, markeredgecolor=DARK)
        first += len(path)
        changes = [abs(value - total[0]) for value in total]
        numbers.append(
            {
                "total": total,
                "potential": potential,
                "kinetic": kinetic,
                "largest_change_of_H": max(changes),
                "acceptance_rate": min(1.0, float(torch.exp(torch.tensor(total[0] - total[-1])))),
            }
        )
    axes.axvline(len(paths[0]) - 0.5, color=GREY, linewidth=0.8)
    axes.set(xlabel="leapfrog step", ylabel="energy")
    title(axes, "b  H is nearly constant within a trajectory, potential and kinetic energy trade")
    axes.set_ylim(-0.15, 1.3 * max(max(path["total"]) for path in numbers))
    axes.legend(fontsize=8, loc="upper left", ncols=3, framealpha=0.95)
    axes.tick_params(labelsize=8)
    return numbers


def draw_acceptance(axes: Axes, generator: torch.Generator) -> dict[str, Any]:
    """Draw one transition of a few chains from exact draws, with a step size at the edge."""
    x, n = torch.randn(2, 6, dtype=F64, generator=generator)
    start = torch.stack([x, 0.5 * x.square() + 0.4 * n], -1)
    recording = Recording(banana)
    kernel = HMC(recording.density, step_size=0.34, num_steps=6)
    state = kernel.init(start)
    recording.points.clear()
    _, info = kernel.step(state, generator)
    paths = torch.stack([start, *recording.points], 1)  # [chains, 1 + L, 2]
    contours(axes, banana, (-3, 3), (-2, 5), (0.2, 1.0, 2.3, 4.6))
    for path, accepted in zip(paths, info["accepted"].tolist(), strict=True):
        color = BLUE if accepted else RED
        axes.plot(*path.T, "-", color=color, linewidth=1, alpha=0.75)
        axes.plot(*path[1:-1].T, ".", color=color, markersize=3.5)
        axes.plot(*path[0], "s", color="white", markeredgecolor=DARK, markersize=6, zorder=4)
        axes.plot(
            *path[-1], "o" if accepted else "X", color=color, markeredgecolor=DARK, markersize=8, zorder=5
        )
    axes.plot([], [], "s", color="white", markeredgecolor=DARK, markersize=6, label="start")
    axes.plot([], [], "o", color=BLUE, markeredgecolor=DARK, markersize=8, label="accepted end")
    axes.plot([], [], "X", color=RED, markeredgecolor=DARK, markersize=8, label="rejected end")
    plain(axes, "c  Ends accepted with rate min(1, exp −ΔH)")
    axes.set(xlabel="z₁", ylabel="z₂", xlim=(-3, 3), ylim=(-2, 5))
    axes.legend(fontsize=8, loc="upper center", framealpha=0.95)
    return {name: info[name].tolist() for name in ("accepted", "acceptance_rate", "energy_change")}


def draw_persistence(
    axes: Axes, persistence: float, letter: str, generator: torch.Generator, seed: int
) -> dict[str, float]:
    """Draw many transitions of a single leapfrog; the numbers are of all chains."""
    root = torch.linalg.cholesky(torch.tensor([[1.0, CORRELATION], [CORRELATION, 1.0]], dtype=F64))
    start = torch.randn(NUM_CHAINS, 2, dtype=F64, generator=generator) @ root.T
    start[0] = torch.tensor([-1.6, -1.6])
    kernel = HMC(Density(narrow), step_size=0.16, num_steps=1, persistence=persistence)
    # without a check: slow mixing is what the picture shows
    draws = sample(kernel, start, NUM_DRAWS, seed=seed, progress=False, check=False)
    path = torch.cat([start[:1], draws.position[0, :NUM_SHOWN]])
    contours(axes, narrow, (-3, 3), (-3, 3), (0.2, 1.0, 2.3, 4.6))
    color = GREEN if persistence else BLUE
    axes.plot(*path.T, "-o", color=color, markersize=2.5, linewidth=0.9)
    axes.plot(*path[0], "s", color="white", markeredgecolor=DARK, markersize=7)
    ess = float(arviz().ess(draws.position.sum(-1).numpy()))
    per_gradient = 1000 * ess / draws.position[..., 0].numel()
    how = "drawn anew" if persistence == 0 else f"kept, α = {persistence:g}"
    plain(axes, f"{letter}  {NUM_SHOWN} leapfrogs, momentum {how}")
    axes.set(xlabel="z₁", ylabel="z₂", xlim=(-3, 3), ylim=(-3, 3))
    axes.text(2.85, -2.75, f"{per_gradient:.1f} effective draws\nper 1000 gradients", ha="right", fontsize=9)
    return {
        "acceptance_rate": float(draws.stats["acceptance_rate"].mean()),
        "ess_per_1000_gradients": per_gradient,
    }
