"""A normal model with normal latents: its posterior is known, and exact draws of x and u can be had."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hmcvi.kernels import GaussianProposal, ImportanceEstimator

DIM, NUM_DATA = 10, 10


class Model:
    """x ~ N(0, I), z_m ~ N(x, σ² I), y_m ~ N(z_m, ε² I), the y_m drawn with seed 0.

    The posterior of x is N(mean, variance · I).  [Graham 2018, (3.14), (3.15)]
    """

    def __init__(self, sigma: float = 1.0, epsilon: float = 2.0) -> None:
        self.sigma, self.epsilon = sigma, epsilon
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(1 + 2 * NUM_DATA, DIM, dtype=torch.float64, generator=generator)
        self.truth = noise[0]
        self.data = self.truth + sigma * noise[1 : 1 + NUM_DATA] + epsilon * noise[1 + NUM_DATA :]
        self.total = sigma**2 + epsilon**2
        self.mean = self.data.sum(0) / (NUM_DATA + self.total)
        self.variance = self.total / (NUM_DATA + self.total)

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z, y) up to a constant  [..., d], [..., M d] -> [...]"""
        z = z.unflatten(-1, (NUM_DATA, DIM))
        prior = ((z - x[..., None, :]) / self.sigma).square().sum((-2, -1))
        misfit = ((self.data - z) / self.epsilon).square().sum((-2, -1))
        return -0.5 * (x.square().sum(-1) + prior + misfit)

    def prior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """loc and scale of p(z | x)"""
        loc = x.repeat(*[1] * (x.ndim - 1), NUM_DATA)
        return loc, torch.full_like(loc, self.sigma)

    def estimator(self, num_importance: int) -> ImportanceEstimator:
        proposal = GaussianProposal(self.prior, NUM_DATA * DIM)
        return ImportanceEstimator(self.log_joint, proposal, num_importance)

    def spread_of_estimates(self, num_importance: int, count: int = 2_000) -> float:
        """The standard deviation of log ε at the x that made the data."""
        generator, estimator = torch.Generator().manual_seed(0), self.estimator(num_importance)
        x = self.truth.expand(count, DIM)
        u = estimator.draw_auxiliary(x, generator)
        return float(estimator.log_estimate(x, u, estimator.prepare(x)).std())

    def auxiliary_posterior(self) -> tuple[float, float]:
        """Mean and standard deviation of the first u given y, for one importance sample.

        u given x and y is N(σ (y − x), ε²) / (σ² + ε²), each variance with one such factor.
        """
        mean = self.sigma * (self.data[0, 0] - self.mean[0]) / self.total
        variance = self.epsilon**2 / self.total + (self.sigma / self.total) ** 2 * self.variance
        return float(mean), math.sqrt(variance)

    def draw(self, count: int, num_importance: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Exact draws of x given y, and of u given x and y, under ε(x, u) ρ(u).

        ε is a mean over samples: one of them, here the first, is distributed like z given x and y, the others
        like ρ.
        """
        x = torch.randn(count, DIM, dtype=torch.float64, generator=generator)
        x = self.mean + math.sqrt(self.variance) * x
        u = torch.randn(count, num_importance, NUM_DATA, DIM, dtype=torch.float64, generator=generator)
        precision = 1 / self.sigma**2 + 1 / self.epsilon**2
        shift = (self.data - x[:, None]) / self.epsilon**2 / precision
        u[:, 0] = (shift + u[:, 0] / math.sqrt(precision)) / self.sigma
        return x, u.flatten(1)

    def deviations(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """x − mean and (x − mean)² − variance, whose posterior means are zero  [chains, draws, d]"""
        centred = draws - self.mean
        return centred, centred.square() - self.variance
