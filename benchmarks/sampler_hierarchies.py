"""Hierarchies, mixtures, processes and densities whose curvature changes from place to place."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.sampler_problem import (
    Array,
    Problem,
    log_half_cauchy,
    log_half_normal,
    log_sigmoid,
)

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools() -> Problem:
    """y ~ N(μ + τ η, σ²), η ~ N(0, I), μ ~ N(0, 5²), τ ~ C⁺(0, 5); in terms of μ, log τ, η."""

    def make(xp: Any) -> Any:
        effects, errors = xp.asarray(EFFECTS), xp.asarray(ERRORS)

        def log_prob(z: Array) -> Array:
            mu, log_tau, eta = z[..., 0], z[..., 1], z[..., 2:]
            theta = mu[..., None] + xp.exp(log_tau)[..., None] * eta
            squares = xp.square((effects - theta) / errors).sum(-1) + xp.square(eta).sum(-1)
            return log_half_cauchy(xp, log_tau, 5.0) - 0.5 * (squares + xp.square(mu / 5))

        return log_prob

    return Problem(make, 10)


def centred_hierarchy() -> Problem:
    """Twenty groups of five, y ~ N(θ_g, σ²), θ ~ N(μ, τ²); in terms of μ, log τ, log σ, θ."""
    rng = np.random.default_rng(11)
    means = 2 + rng.normal(size=20)
    y = means[:, None] + 1.5 * rng.normal(size=(20, 5))

    def make(xp: Any) -> Any:
        data = xp.asarray(y)

        def log_prob(z: Array) -> Array:
            mu, log_tau, log_sigma, theta = z[..., 0], z[..., 1], z[..., 2], z[..., 3:]
            squares = xp.square(data - theta[..., None]).sum(-1).sum(-1) * xp.exp(-2 * log_sigma)
            spread = xp.square(theta - mu[..., None]).sum(-1) * xp.exp(-2 * log_tau)
            prior = log_half_cauchy(xp, log_tau, 2.5) + log_half_cauchy(xp, log_sigma, 2.5)
            return prior - 0.5 * (squares + spread + xp.square(mu / 10)) - 100 * log_sigma - 20 * log_tau

        return log_prob

    return Problem(make, 23)


def noncentred_hierarchy() -> Problem:
    """Twelve groups of six labels with logits a + τ η_g + b x; in terms of a, b, log τ, η."""
    rng = np.random.default_rng(12)
    x = rng.normal(size=(12, 6))
    logits = 0.5 + 1.5 * rng.normal(size=(12, 1)) - x
    y = np.where(rng.uniform(size=(12, 6)) < 1 / (1 + np.exp(-logits)), 1.0, -1.0)

    def make(xp: Any) -> Any:
        inputs, labels = xp.asarray(x), xp.asarray(y)

        def log_prob(z: Array) -> Array:
            a, b, log_tau, eta = z[..., 0, None], z[..., 1, None], z[..., 2], z[..., 3:]
            group = a + xp.exp(log_tau)[..., None] * eta
            logit = group[..., None] + b[..., None] * inputs
            likelihood = log_sigmoid(xp, labels * logit).sum(-1).sum(-1)
            squares = xp.square(eta).sum(-1) + xp.square(z[..., :2] / 5).sum(-1)
            return likelihood - 0.5 * squares + log_half_normal(xp, log_tau, 2.0)

        return log_prob

    return Problem(make, 15, held_out=True)


def horseshoe() -> Problem:
    """y ~ N(Xβ, σ²), β_j = τ λ_j η_j with half-Cauchy τ and λ_j; in terms of η, log λ, log τ, log σ."""
    rng = np.random.default_rng(13)
    x = rng.normal(size=(50, 8))
    y = x[:, 0] * 2 - x[:, 1] + 0.7 * rng.normal(size=50)

    def make(xp: Any) -> Any:
        inputs, data = xp.asarray(x).T, xp.asarray(y)

        def log_prob(z: Array) -> Array:
            eta, log_lambda, log_tau, log_sigma = z[..., :8], z[..., 8:16], z[..., 16], z[..., 17]
            beta = eta * xp.exp(log_lambda + log_tau[..., None])
            squares = xp.square(data - beta @ inputs).sum(-1) * xp.exp(-2 * log_sigma)
            scales = log_half_cauchy(xp, log_lambda, 1.0).sum(-1) + log_half_cauchy(xp, log_tau, 0.5)
            sigma = log_half_cauchy(xp, log_sigma, 2.5) - 50 * log_sigma
            return scales + sigma - 0.5 * (squares + xp.square(eta).sum(-1))

        return log_prob

    return Problem(make, 18)


def gp_poisson() -> Problem:
    """Counts with log rate f ~ GP, squared-exponential; in terms of log ρ, log α and f = L(ρ, α) η."""
    rng = np.random.default_rng(14)
    x = np.linspace(-10, 10, 12)
    counts = rng.poisson(np.exp(1.0 + 1.5 * np.sin(x / 3))).astype(float)

    def make(xp: Any) -> Any:
        gaps, y, nugget = xp.asarray(np.square(x[:, None] - x)), xp.asarray(counts), xp.asarray(np.eye(12))

        def log_prob(z: Array) -> Array:
            log_rho, log_alpha, eta = z[..., 0], z[..., 1], z[..., 2:]
            kernel = xp.exp(
                2 * log_alpha[..., None, None] - 0.5 * gaps * xp.exp(-2 * log_rho)[..., None, None]
            )
            f = (xp.linalg.cholesky(kernel + 1e-6 * nugget) @ eta[..., None])[..., 0]
            prior = 25 * log_rho - 4 * xp.exp(log_rho) + log_half_normal(xp, log_alpha, 2.0)
            return prior + (y * f - xp.exp(f)).sum(-1) - 0.5 * xp.square(eta).sum(-1)

        return log_prob

    return Problem(make, 14)


def ordered_mixture() -> Problem:
    """Two normals with means μ₁ < μ₂ = μ₁ + e^δ; in terms of μ₁, δ, log σ₁, log σ₂ and a logit."""
    rng = np.random.default_rng(15)
    y = np.r_[rng.normal(-2.5, 1.0, size=80), rng.normal(2.0, 1.3, size=120)]

    def make(xp: Any) -> Any:
        data = xp.asarray(y)

        def log_prob(z: Array) -> Array:
            mu, delta, log_1, log_2, logit = (z[..., i, None] for i in range(5))
            low = log_sigmoid(xp, logit) - 0.5 * xp.square((data - mu) * xp.exp(-log_1)) - log_1
            upper = mu + xp.exp(delta)
            high = log_sigmoid(xp, -logit) - 0.5 * xp.square((data - upper) * xp.exp(-log_2)) - log_2
            likelihood = xp.logaddexp(low, high).sum(-1)
            means = -0.5 * (xp.square(mu / 2) + xp.square(upper / 2)) + delta
            scales = log_half_normal(xp, log_1, 2.0) + log_half_normal(xp, log_2, 2.0)
            weight = 5 * (log_sigmoid(xp, logit) + log_sigmoid(xp, -logit))
            return likelihood + (means + scales + weight)[..., 0]

        return log_prob

    return Problem(make, 5)


def lotka_volterra() -> Problem:
    """u̇ = αu − βuv, v̇ = δuv − γv, seen twelve times with log-normal noise; z are standardised log rates."""
    rng = np.random.default_rng(16)
    typical = np.log(np.array([0.8, 0.5, 0.5, 0.9, 1.0, 1.0]))

    def paths(xp: Any, log_rates: Array) -> Array:
        """log u, log v after each of 12 intervals, by two Runge–Kutta steps of size 0.4 each."""
        alpha, beta, delta, gamma = (xp.exp(log_rates[..., i]) for i in range(4))
        state, step, seen = log_rates[..., 4:], 0.4, []
        up, down = xp.stack([alpha, -gamma], -1), xp.stack([-beta, delta], -1)

        def slope(x: Array) -> Array:
            return up + down * xp.exp(xp.stack([x[..., 1], x[..., 0]], -1))

        for _ in range(12):
            for _ in range(2):
                k1 = slope(state)
                k2 = slope(state + step / 2 * k1)
                k3 = slope(state + step / 2 * k2)
                state = state + step / 6 * (k1 + 2 * k2 + 2 * k3 + slope(state + step * k3))
            seen.append(state)
        return xp.stack(seen, -2)

    truth = typical + 0.3 * rng.normal(size=6)
    data = paths(np, truth) + 0.25 * rng.normal(size=(12, 2))

    def make(xp: Any) -> Any:
        center, log_data = xp.asarray(typical), xp.asarray(data)

        def log_prob(z: Array) -> Array:
            log_sigma = z[..., 6:] - 1
            gap = (log_data - paths(xp, center + 0.5 * z[..., :6])) * xp.exp(-log_sigma)[..., None, :]
            return -0.5 * xp.square(gap).sum(-1).sum(-1) - 12 * log_sigma.sum(-1) - 0.5 * xp.square(z).sum(-1)

        return log_prob

    return Problem(make, 8)


def funnel() -> Problem:
    """v ~ N(0, 3²), x_i ~ N(0, e^v), nine of them.  [Neal 2003]"""

    def make(xp: Any) -> Any:
        def log_prob(z: Array) -> Array:
            v, x = z[..., 0], z[..., 1:]
            return -0.5 * (xp.square(v / 3) + xp.square(x).sum(-1) * xp.exp(-v) + 9 * v)

        return log_prob

    sd = np.r_[3.0, np.full(9, np.exp(9 / 4))]
    return Problem(make, 10, (np.zeros(10), sd), compared=slice(1))


def student_t() -> Problem:
    """Ten independent t₅ variables of scales from 0.1 to 10."""
    scales = np.logspace(-1, 1, 10)

    def make(xp: Any) -> Any:
        width = xp.asarray(scales)
        return lambda z: -3 * xp.log1p(xp.square(z / width) / 5).sum(-1)

    return Problem(make, 10, (np.zeros(10), scales * np.sqrt(5 / 3)))


def rosenbrock() -> Problem:
    """Two pairs x ~ N(1, 1), y ~ N(x², 0.3²)."""

    def make(xp: Any) -> Any:
        def log_prob(z: Array) -> Array:
            x, y = z[..., :2], z[..., 2:]
            return -0.5 * (xp.square(x - 1) + xp.square((y - xp.square(x)) / 0.3)).sum(-1)

        return log_prob

    mean, sd = np.array([1.0, 1.0, 2.0, 2.0]), np.sqrt(np.array([1.0, 1.0, 6.09, 6.09]))
    return Problem(make, 4, (mean, sd))
