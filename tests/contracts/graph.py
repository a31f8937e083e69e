"""Any density as that of a fibre, so that constrained dynamics can take part in the laws of kernels."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from hmcvi import Density, Phase
from hmcvi.kernels import ConstrainedHMC
from tests.problems import F64


class Graph:
    """Inputs (z, n), output n − h(z), h(z) = ½ Σ sin z_i, and log ρ(z, n) = log γ(z).

    On the fibre over zero, the graph n = h(z), z has the density γ: the volume (1 + |∇h|²)^½ of the graph
    over z is the |J Jᵀ|^½ by which the density is divided.
    """

    structure, num_observed, is_conditional = "dense", 1, False

    def __init__(self, density: Density, dim: int) -> None:
        self.dim, self.batch = dim + 1, torch.Size([-1])
        self.density = Density(
            lambda u: density.log_prob(u[..., :-1].view(*self.batch, dim)).view(u.shape[:-1])
        )

    def residual(self, inputs: Tensor, observed: Tensor) -> Tensor:
        return inputs[..., -1:] - height(inputs[..., :-1]) - observed

    def observed(self, inputs: Tensor) -> Tensor:
        return inputs[..., -1:] - height(inputs[..., :-1])

    def sample(self, *shape: int, generator: torch.Generator | None = None) -> Tensor:
        raise NotImplementedError("draws come from the target")


class GraphHMC(ConstrainedHMC):
    """Constrained dynamics on the graph over z, seen from z."""

    def __init__(self, density: Density, dim: int, step_size: float, num_steps: int) -> None:
        self.graph = Graph(density, dim)
        super().__init__(self.graph, torch.zeros(1, dtype=F64), step_size, num_steps)
        self.density = density

    def replace(self, **settings: Any) -> Self:
        if "density" not in settings:
            return super().replace(**settings)
        return type(self)(settings["density"], self.graph.dim - 1, float(self.step_size), self.num_steps)

    def init(self, position: Tensor) -> Phase:
        self.graph.batch = position.shape[:-1]
        return lowered(super().init(lifted(Phase(position)).position), position)

    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, dict[str, Tensor]]:
        self.graph.batch = state.position.shape[:-1]
        new, info = super().step(lifted(state), generator)
        kind = state.position.dtype
        info = {name: v.to(kind) if v.is_floating_point() else v for name, v in info.items()}
        return lowered(new, state.position), info


def height(z: Tensor) -> Tensor:
    return 0.5 * z.sin().sum(-1, keepdim=True)


def log_volume(z: Tensor) -> tuple[Tensor, Tensor]:
    """½ log(1 + |∇h|²) [...] and its gradient [..., d]"""
    square = 1 + 0.25 * z.cos().square().sum(-1)
    return 0.5 * square.log(), -0.25 * z.cos() * z.sin() / square[..., None]


def lifted(state: Phase) -> Phase:
    """z -> (z, h(z)), and the density there."""
    z = state.position.to(F64)
    position, (volume, slope) = torch.cat([z, height(z)], -1), log_volume(z)
    if state.log_prob is None or state.grad is None:
        return Phase(position)
    grad = torch.cat([state.grad.to(F64) - slope, torch.zeros_like(position[..., :1])], -1)
    return Phase(position, None, state.log_prob.to(F64) - volume, grad)


def lowered(state: Phase, like: Tensor) -> Phase:
    """(z, h(z)) -> z"""
    assert state.log_prob is not None and state.grad is not None
    z = state.position[..., :-1]
    volume, slope = log_volume(z)
    return Phase(
        z.to(like), None, (state.log_prob + volume).to(like), (state.grad[..., :-1] + slope).to(like)
    )
