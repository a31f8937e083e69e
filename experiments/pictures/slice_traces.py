"""The interior of one slice transition: the points the kernel evaluated, and its random numbers.

The points come from the density, which records them; height, bracket and direction are drawn a second time
from a copy of the generator, in the order in which the kernel draws them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from experiments.pictures import LogProb, Recording
from hmcvi.kernels import EllipticalSlice, Kernel, LinearSlice, ReflectiveSlice
from hmcvi.kernels.mcmc.kernel import Info

MAX_TRIES = 200


@dataclass(frozen=True)
class Bracket:
    """[lower, upper] after `point` was evaluated."""

    name: str
    lower: float
    upper: float
    point: float | None = None


@dataclass(frozen=True)
class Trace:
    """One transition of one chain; `curve` [n, d] is where it could go."""

    start: Tensor  # [d]
    start_density: Tensor
    end: Tensor
    height: Tensor  # log h, compared to log γ (for an ellipse: to log γ − log N)
    edges: list[Tensor]  # ends of the bracket that were evaluated
    misses: list[Tensor]
    curve: Tensor
    curve_inside: Tensor  # [n]: whether the curve is above the height
    other: Tensor | None = None  # the second axis of an ellipse
    brackets: list[Bracket] = field(default_factory=list)

    def numbers(self) -> dict[str, Any]:
        return {
            "start": self.start.tolist(),
            "end": self.end.tolist(),
            "log_height": float(self.height),
            "num_ends_looked_at": len(self.edges),
            "num_misses": len(self.misses),
        }


def telling(trace: Callable[[], Trace], num_misses: range, num_edges: int = 0) -> Trace:
    """The first transition with something to see: so many misses, so many evaluated ends of the bracket."""
    for _ in range(MAX_TRIES):
        found = trace()
        if len(found.misses) in num_misses and len(found.edges) >= num_edges:
            break
    return found


def _copy(generator: torch.Generator) -> torch.Generator:
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy


def _run(
    kernel: Kernel, recording: Recording, start: Tensor, generator: torch.Generator
) -> tuple[list[Tensor], Tensor, Info]:
    """Make one transition: the points that were evaluated [d], where it ended [d], its diagnostics."""
    state = kernel.init(start[None])
    recording.points.clear()
    state, info = kernel.step(state, generator)
    return [point[0] for point in recording.points], state.position[0], info


def _uniform(generator: torch.Generator) -> Tensor:
    return torch.rand(1, dtype=torch.float64, generator=generator)[0]


def _direction(start: Tensor, generator: torch.Generator) -> Tensor:
    normal = torch.randn(start[None].shape, dtype=start.dtype, generator=generator)[0]
    return normal / normal.norm()


def line_trace(
    log_prob: LogProb, start: Tensor, width: float, max_step_out: int, generator: torch.Generator
) -> Trace:
    """Trace a linear slice in one dimension, with its brackets."""
    recording, replay = Recording(log_prob), _copy(generator)
    kernel = LinearSlice(recording.density, width, max_step_out)
    points, end, info = _run(kernel, recording, start, generator)
    direction = _direction(start, replay)
    height = log_prob(start) + _uniform(replay).log()
    upper = _uniform(replay)
    ends = sorted(float(start + offset * width * direction) for offset in (upper - 1, upper))
    num_edges = int(info["num_evaluations"] - info["num_shrinks"] - info["accepted"].long())
    edges, misses = points[:num_edges], points[num_edges:-1]
    inside = [bool(log_prob(edge) > height) for edge in edges]
    brackets = [Bracket("first bracket", ends[0], ends[1])]
    for edge, step_out in zip(map(float, edges), inside, strict=True):
        side = int(edge > float(start))
        ends[side] += (2 * side - 1) * width * step_out
        brackets.append(Bracket("step out" if step_out else "stay", ends[0], ends[1], edge))
    for miss in map(float, misses):
        ends[int(miss >= float(start))] = miss
        brackets.append(Bracket("shrink", ends[0], ends[1], miss))
    brackets.append(Bracket("new state", ends[0], ends[1], float(end)))
    line = torch.linspace(ends[0], ends[1], 400, dtype=start.dtype)[:, None]
    return Trace(
        start,
        log_prob(start).exp(),
        end,
        height,
        edges,
        misses,
        line,
        log_prob(line) > height,
        brackets=brackets,
    )


def ellipse_trace(log_prob: LogProb, start: Tensor, generator: torch.Generator) -> Trace:
    """Trace an elliptical slice around N(0, I)."""

    def level(position: Tensor) -> Tensor:
        return log_prob(position) + 0.5 * position.square().sum(-1)

    recording, replay = Recording(log_prob), _copy(generator)
    kernel = EllipticalSlice(recording.density, 0.0, 1.0)
    points, end, _ = _run(kernel, recording, start, generator)
    other = torch.randn(start[None].shape, dtype=start.dtype, generator=replay)[0]
    height = level(start) + _uniform(replay).log()
    angle = torch.linspace(0, 2 * math.pi, 800, dtype=start.dtype)[:, None]
    curve = start * angle.cos() + other * angle.sin()
    return _trace(level, start, points, end, height, curve, other)


def reflected_trace(log_prob: LogProb, start: Tensor, width: float, generator: torch.Generator) -> Trace:
    """Trace a linear slice folded into the unit square, its bracket fixed."""
    recording, replay = Recording(log_prob), _copy(generator)
    kernel = ReflectiveSlice(recording.density, width)
    points, end, _ = _run(kernel, recording, start, generator)
    direction = width * _direction(start, replay)
    height = log_prob(start) + _uniform(replay).log()
    offset = _uniform(replay) - torch.linspace(1, 0, 2000, dtype=start.dtype)[:, None]
    folded = (start + offset * direction).remainder(2)
    curve = torch.minimum(folded, 2 - folded)
    return _trace(log_prob, start, points, end, height, curve, None)


def _trace(
    level: Callable[[Tensor], Tensor],
    start: Tensor,
    points: list[Tensor],
    end: Tensor,
    height: Tensor,
    curve: Tensor,
    other: Tensor | None,
) -> Trace:
    density = level(start).exp()
    return Trace(start, density, end, height, [], points[:-1], curve, level(curve) > height, other)
