"""Any density as that of a manifold, so that constrained dynamics can take part in the laws of kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi import Density, Phase
from hmcvi.kernels import ConstrainedHMC
from hmcvi.kernels.mcmc.retarget import retarget
from hmcvi.models import Generator
from hmcvi.models.inputs import Normal
from tests.support.problems import F64


class Graph(Generator):
    """Inputs (z, n), output n − h(z), h(z) = ½ Σ sin z_i, and log ρ(z, n) = log γ(z).

    On the manifold over zero, the graph n = h(z), z has the density γ: the volume (1 + |∇h|²)^½ of the graph
    over z is the |J Jᵀ|^½ by which the density is divided.
    """

    def __init__(self, density: Density, dim: int) -> None:
        super().__init__({"z": Normal(dim), "n": Normal(1)}, lambda v: v["n"] - height(v["z"]))
        self.target, self.batch = density, torch.Size([-1])
        self.density = Density(
            lambda u: density.log_prob(u[..., :-1].view(*self.batch, dim)).view(u.shape[:-1])
        )


class GraphHMC(ConstrainedHMC):
    """Constrained dynamics on the graph over z, seen from z."""

    def __init__(self, density: Density, dim: int, step_size: float, num_steps: int) -> None:
        super().__init__(Graph(density, dim), torch.zeros(1, dtype=F64), step_size, num_steps)

    @property
    def density(self) -> Density:
        return self.generator.target

    def init(self, position: Tensor) -> Phase:
        self.generator.batch = position.shape[:-1]
        return lowered(super().init(lifted(Phase(position)).position), position)

    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, dict[str, Tensor]]:
        self.generator.batch = state.position.shape[:-1]
        new, info = super().step(lifted(state), generator)
        kind = state.position.dtype
        info = {name: v.to(kind) if v.is_floating_point() else v for name, v in info.items()}
        return lowered(new, state.position), info


@retarget.register
def _(kernel: GraphHMC, density: Density) -> GraphHMC:
    return GraphHMC(density, kernel.generator.dim - 1, float(kernel.step_size), kernel.num_steps)


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
