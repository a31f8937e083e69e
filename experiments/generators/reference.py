"""The exact posterior of a simulator's parameters, by importance sampling with their likelihood.

No dynamics and no Jacobians of the simulator: an answer that is independent of those that are compared to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from experiments.models.quantile import quantile
from hmcvi.models import Generator
from hmcvi.models.generator import Variables

DEGREES = 5.0  # of freedom of the proposal, a Student t
WIDER = 1.5  # than the covariance it was given
BATCH = 2000
WIDEST, BISECTIONS = 750.0, 64  # of the logits between which quantiles are inverted, to 10⁻¹⁶ of it

LogLikelihood = Callable[[Variables], Tensor]  # {name: [...]} -> [...]


@dataclass(frozen=True)
class Reference:
    """Weighted draws: parameters {name: [draws]}, weights [draws] that sum to one."""

    parameters: dict[str, Tensor]
    weights: Tensor

    def summary(self, name: str) -> dict[str, float]:
        """With the standard error of a self-normalised mean, √Σ w² (z − z̄)²."""
        values, weights = self.parameters[name], self.weights
        mean = (weights * values).sum()
        square = (values - mean).square()
        return {
            "mean": float(mean),
            "standard_error": float((weights.square() * square).sum().sqrt()),
            "standard_deviation": float((weights * square).sum().sqrt()),
        }

    def report(self) -> dict[str, object]:
        return {
            "num_draws": len(self.weights),
            "ess": 1 / float(self.weights.square().sum()),
            "parameters": {name: self.summary(name) for name in self.parameters},
        }


@torch.no_grad()
def reference(
    generator: Generator, log_likelihood: LogLikelihood, near: Tensor, num_draws: int, seed: int
) -> Reference:
    """Of the inputs u₁ that are no output's own, proposed by a Student t around those of `near` [..., M].

    log w = log p(y | z(u₁)) + log ρ(u₁) − log t(u₁)
    """
    rng = torch.Generator().manual_seed(seed)
    dim = generator.dim - generator.num_observed
    known = near[..., :dim].reshape(-1, dim)
    mean, root = known.mean(0), torch.linalg.cholesky(WIDER * known.T.cov())
    normal = torch.randn(num_draws, dim, dtype=near.dtype, generator=rng)
    scale = torch.randn(num_draws, int(DEGREES), dtype=near.dtype, generator=rng).square().mean(-1)
    student = normal / scale.sqrt()[:, None]
    log_proposal = -0.5 * (DEGREES + dim) * (student.square().sum(-1) / DEGREES).log1p()
    inputs = torch.zeros(num_draws, generator.dim, dtype=near.dtype)
    inputs[:, :dim] = mean + student @ root.T
    latent = generator.latent(inputs)
    parts = [
        log_likelihood({name: values[rows] for name, values in latent.items()})
        for rows in torch.arange(num_draws).split(BATCH)
    ]
    log_weight = torch.cat(parts) + generator.density.finite_log_prob(inputs) - log_proposal
    return Reference(dict(latent), torch.softmax(log_weight, 0))


def generalised_lambda_likelihood(observed: Tensor) -> LogLikelihood:
    """log p(y | z) = Σ_i log σ(l_i) σ(−l_i) − log ∂q/∂l,  q(l_i | z) = y_i solved by bisection.

    ∂q/∂l = (p^{z₃} (1 − p) + (1 − p)^{z₄} p) / z₂,  p = σ(l)
    """

    def log_likelihood(z: Variables) -> Tensor:
        stacked = torch.stack([z[name] for name in ("z1", "z2", "z3", "z4")], -1)
        low = observed.new_full((*stacked.shape[:-1], len(observed)), -WIDEST)
        high = -low
        outside = (quantile(low, stacked) >= observed) | (quantile(high, stacked) <= observed)
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            below = quantile(middle, stacked) < observed
            low, high = middle.where(below, low), high.where(below, middle)
        log_p, log_q = logsigmoid(low), logsigmoid(-low)
        _, scale, lower, upper = stacked[..., None].unbind(-2)
        log_slope = torch.logaddexp(lower * log_p + log_q, upper * log_q + log_p) - scale.log()
        return (log_p + log_q - log_slope).where(~outside, -torch.inf).sum(-1)

    return log_likelihood


def lotka_volterra_likelihood(
    observed: Tensor, initial: tuple[float, float] = (100.0, 100.0), eats_new_prey: bool = False
) -> LogLikelihood:
    """The increments of a path are normal of unit variance given the populations before them."""
    path = torch.cat([observed.new_tensor([initial]), observed.view(-1, 2)])
    (prey, predators), (new_prey, new_predators) = path[:-1].T, path[1:].T
    food = new_prey if eats_new_prey else prey

    def log_likelihood(z: Variables) -> Tensor:
        z1, z2, z3, z4 = (z[name][..., None] for name in ("z1", "z2", "z3", "z4"))
        noise_prey = new_prey - prey - (z1 * prey - z2 * prey * predators)
        noise_predators = new_predators - predators - (z4 * food * predators - z3 * predators)
        return -0.5 * (noise_prey.square() + noise_predators.square()).sum(-1)

    return log_likelihood
