"""Posteriors whose moments are known, exactly or from an independent sampler (see make_references.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from hmcvi import Density
from tests.support.problems import F64

REFERENCES = Path(__file__).with_name("references.json")
EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=F64)
ERRORS = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=F64)


class Reference(NamedTuple):
    """Means and variances of the quantities of interest, and their Monte Carlo errors (0: exact).  [k]"""

    mean: Tensor
    mean_error: Tensor
    variance: Tensor
    variance_error: Tensor


def stored_reference(name: str) -> Reference:
    return Reference(
        **{k: torch.tensor(v, dtype=F64) for k, v in json.loads(REFERENCES.read_text())[name].items()}
    )


def half_cauchy(log_tau: Tensor) -> Tensor:
    """log density of log τ where τ ~ C⁺(0, 5), up to a constant."""
    return log_tau - torch.log1p((log_tau.exp() / 5).square())


def eight_schools() -> Density:
    """y ~ N(θ, σ), θ = μ + τ η, η ~ N(0, 1), μ ~ N(0, 5), τ ~ C⁺(0, 5), in terms of μ, log τ, η."""

    def log_prob(v: dict[str, Tensor]) -> Tensor:
        theta = v["mu"][..., None] + v["log_tau"].exp()[..., None] * v["eta"]
        likelihood = -0.5 * ((EFFECTS - theta) / ERRORS).square().sum(-1)
        prior = -0.5 * v["eta"].square().sum(-1) - 0.5 * (v["mu"] / 5).square()
        return likelihood + prior + half_cauchy(v["log_tau"])

    return Density(log_prob, shapes={"mu": (), "log_tau": (), "eta": (8,)})


def centred_eight_schools() -> Density:
    """The same in terms of μ, log τ, θ: a funnel."""

    def log_prob(v: dict[str, Tensor]) -> Tensor:
        tau = v["log_tau"].exp()[..., None]
        likelihood = -0.5 * ((EFFECTS - v["theta"]) / ERRORS).square().sum(-1)
        spread = -0.5 * ((v["theta"] - v["mu"][..., None]) / tau).square().sum(-1) - 8 * v["log_tau"]
        return likelihood + spread - 0.5 * (v["mu"] / 5).square() + half_cauchy(v["log_tau"])

    return Density(log_prob, shapes={"mu": (), "log_tau": (), "theta": (8,)})


def school_quantities(v: dict[str, Tensor]) -> Tensor:
    """θ_1, …, θ_8, μ, τ  [..., 10]"""
    tau = v["log_tau"].exp()
    theta = v["mu"][..., None] + tau[..., None] * v["eta"]
    return torch.cat([theta, v["mu"][..., None], tau[..., None]], -1)


def logistic_data(count: int = 200, dim: int = 8) -> tuple[Tensor, Tensor]:
    """Correlated covariates of very different scales, and labels ±1 of a true coefficient."""
    generator = torch.Generator().manual_seed(2024)
    mixing = torch.eye(dim, dtype=F64) + 0.4 * torch.ones(dim, dim, dtype=F64).tril(-1)
    x = torch.randn(count, dim, dtype=F64, generator=generator) @ mixing.T
    x = x * torch.logspace(-1, 1, dim, dtype=F64)
    logits = x @ (torch.linspace(1.0, -1.0, dim, dtype=F64) / x.std(0))
    labels = 2.0 * (torch.rand(count, dtype=F64, generator=generator) < logits.sigmoid()) - 1
    return x, labels


def logistic_regression() -> Density:
    """β ~ N(0, 5²), P(y = ±1) = σ(y xᵀβ)."""
    x, labels = logistic_data()
    signed = labels[:, None] * x

    def log_prob(beta: Tensor) -> Tensor:
        return logsigmoid(beta @ signed.T).sum(-1) - 0.02 * beta.square().sum(-1)

    return Density(log_prob)


def ill_conditioned_normal(dim: int = 50, condition: float = 1e6) -> tuple[Density, Tensor, Tensor]:
    """N(μ, Σ) with a rotated Σ whose eigenvalues span `condition`.  -> density, μ [d], Σ [d, d]"""
    generator = torch.Generator().manual_seed(7)
    rotation = torch.linalg.qr(torch.randn(dim, dim, dtype=F64, generator=generator)).Q
    values = torch.logspace(0, 1, dim, dtype=F64).log10() * torch.tensor(condition, dtype=F64).log()
    values = (values - values.mean()).exp()
    covariance, precision = (rotation * values @ rotation.T), (rotation / values @ rotation.T)
    mean = torch.linspace(-2.0, 3.0, dim, dtype=F64)

    def log_prob(z: Tensor) -> Tensor:
        return -0.5 * ((z - mean) @ precision * (z - mean)).sum(-1)

    return Density(log_prob), mean, covariance
