"""Asymmetric targets with exact draws, and functions of a draw that are independent and uniform."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.distributions import Gamma, Normal

from hmcvi import Density
from tests.support.problems import F64, Mixture


class Target(Protocol):
    dim: int
    density: Density
    independent: bool  # whether the uniforms are independent of each other

    def draw(self, count: int) -> Tensor:
        """Exact draws.  [count, d]"""

    def draw_base(self, *shape: int) -> Tensor:
        """Draws from something else, inside the support.  [*shape, d]"""

    def uniforms(self, z: Tensor) -> Tensor:
        """Functions of z that are uniform on [0, 1] if z is an exact draw.  [N, d] -> [N, k]"""


class Modes(Mixture):
    """The mixture, seen along four directions."""

    independent = False
    directions = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-0.8, 0.6]], dtype=F64)

    def uniforms(self, z: Tensor) -> Tensor:
        return torch.stack([self.projected_cdf(z, direction) for direction in self.directions], -1)


class LogGamma:
    """z = log g, g ~ Gamma(1.5) on R: an exponential tail to the left, a steep one to the right."""

    dim, shape, independent = 1, 1.5, True

    def __init__(self) -> None:
        self.density = Density(lambda z: (self.shape * z - z.exp()).sum(-1))

    def draw(self, count: int) -> Tensor:
        return Gamma(torch.tensor(self.shape, dtype=F64), 1.0).sample((count, 1)).log()

    def draw_base(self, *shape: int) -> Tensor:
        return torch.randn(*shape, 1, dtype=F64)

    def uniforms(self, z: Tensor) -> Tensor:
        return torch.special.gammainc(torch.tensor(self.shape, dtype=F64), z.exp())


class Nested:
    """z_0 ~ N(0, 1), z_i | z_0 ~ N(loc(z_0), scale(z_0)²); the standardised coordinates are independent."""

    independent = True

    def __init__(self, dim: int, bend: float, log_slope: float) -> None:
        self.dim, self.bend, self.log_slope = dim, bend, log_slope
        self.density = Density(self.log_prob)

    def loc_and_scale(self, root: Tensor) -> tuple[Tensor, Tensor]:
        return self.bend * (root.square() + root), 0.7 * (self.log_slope * root).exp()

    def standardised(self, z: Tensor) -> Tensor:
        root = z[..., :1]
        loc, scale = self.loc_and_scale(root)
        return torch.cat([root, (z[..., 1:] - loc) / scale], -1)

    def log_prob(self, z: Tensor) -> Tensor:
        _, scale = self.loc_and_scale(z[..., :1])
        return -0.5 * self.standardised(z).square().sum(-1) - (self.dim - 1) * scale[..., 0].log()

    def draw(self, count: int) -> Tensor:
        noise = torch.randn(count, self.dim, dtype=F64)
        loc, scale = self.loc_and_scale(noise[:, :1])
        return torch.cat([noise[:, :1], loc + scale * noise[:, 1:]], -1)

    def draw_base(self, *shape: int) -> Tensor:
        return torch.randn(*shape, self.dim, dtype=F64)

    def uniforms(self, z: Tensor) -> Tensor:
        return normal_cdf(self.standardised(z))


class Cube:
    """x_i | x_{i−1} exponential of rate 1 + 3 x_{i−1}, truncated to [0, 1]: much happens at the faces."""

    independent = True

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.density = Density(self.log_prob)

    def rates(self, x: Tensor) -> Tensor:
        return 1 + 3 * torch.cat([torch.ones_like(x[..., :1]), x[..., :-1]], -1)

    def log_prob(self, x: Tensor) -> Tensor:
        inside = ((x >= 0) & (x <= 1)).all(-1)
        rates = self.rates(x.clamp(0, 1))
        return (rates.log() - torch.log(-torch.expm1(-rates)) - rates * x).sum(-1).where(inside, -torch.inf)

    def draw(self, count: int) -> Tensor:
        coordinates = []
        rate = torch.full((count,), 4.0, dtype=F64)
        for _ in range(self.dim):
            u = torch.rand(count, dtype=F64)
            coordinates.append(-torch.log1p(u * torch.expm1(-rate)) / rate)
            rate = 1 + 3 * coordinates[-1]
        return torch.stack(coordinates, -1)

    def draw_base(self, *shape: int) -> Tensor:
        return torch.rand(*shape, self.dim, dtype=F64)

    def uniforms(self, x: Tensor) -> Tensor:
        rates = self.rates(x)
        return torch.expm1(-rates * x) / torch.expm1(-rates)


class Groups:
    """A small hierarchical model: μ ~ N(0, 1), log τ ~ N(−0.3, 0.5²), θ_j ~ N(μ, τ²), y_j ~ N(θ_j, 0.8²).

    The posterior of one data set y [N, 3] per chain, of (μ, log τ, θ), or on the unit cube of the uniforms
    that make the five standard normals behind them.
    """

    num_groups, noise = 3, 0.8
    dim = 2 + num_groups

    def __init__(self, count: int, on_cube: bool) -> None:
        self.on_cube = on_cube
        normals = torch.randn(count, self.dim, dtype=F64)
        variables = self.variables(normals)
        self.truth = normal_cdf(normals) if on_cube else variables
        y = variables[:, 2:] + self.noise * torch.randn(count, self.num_groups, dtype=F64)
        self.density = Density(self.log_joint, y)

    def variables(self, normals: Tensor) -> Tensor:
        mu, log_tau = normals[..., :1], -0.3 + 0.5 * normals[..., 1:2]
        return torch.cat([mu, log_tau, mu + log_tau.exp() * normals[..., 2:]], -1)

    def log_joint(self, position: Tensor, y: Tensor) -> Tensor:
        if self.on_cube:
            z, log_prior = self.variables(torch.special.ndtri(position)), 0.0
        else:
            z = position
            mu, log_tau, theta = z[..., :1], z[..., 1:2], z[..., 2:]
            residuals = torch.cat([mu, (log_tau + 0.3) / 0.5, (theta - mu) / log_tau.exp()], -1)
            log_prior = -0.5 * residuals.square().sum(-1) - self.num_groups * log_tau[..., 0]
        return log_prior - 0.5 * ((y - z[..., 2:]) / self.noise).square().sum(-1)


def normal_cdf(z: Tensor) -> Tensor:
    return Normal(torch.zeros((), dtype=F64), 1.0).cdf(z)


PLANE: dict[str, Target] = {
    "log gamma": LogGamma(),
    "banana": Nested(2, bend=0.5, log_slope=0.0),
    "modes": Modes(),
    "funnel in 20 dimensions": Nested(20, bend=0.2, log_slope=0.4),
}
CUBE: dict[str, Target] = {f"cube in {dim} dimensions": Cube(dim) for dim in (1, 2, 20)}
