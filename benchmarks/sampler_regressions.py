"""Regressions and time series whose coefficients differ in scale by orders of magnitude, or correlate."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.sampler_problem import (
    Array,
    Problem,
    log_half_cauchy,
    log_half_normal,
    log_sigmoid,
    recursion,
)

# The factors R and Qᵀy of X = QR, and the residual sum of squares, say of these data all that the posterior
# depends on: ‖y − Xβ‖² = ‖Qᵀy − Rβ‖² + rss.  [posteriordb: kidiq, sblri]
KIDIQ = (
    434,
    [
        [20.832666656, 16.3685238011, 2083.2666656, 1673.06036275],
        [0.0, 8.54818276427, 88.2420104074, 873.727278658],
        [0.0, 0.0, 299.396639258, 250.375677072],
        [0.0, 0.0, 0.0, 110.786536177],
    ],
    [1808.2178639, 100.622890369, 168.831576189, -53.6511127067],
    138878.6476026881,
)
SBLRI = (
    100,
    [
        [1037.07875105, 137.978105323, 195.081138916, -85.8428974538, -51.934572703],
        [0.0, 856.51310827, 69.6614075912, -149.560494663, -9.4687910868],
        [0.0, 0.0, 1040.18220363, 192.181292043, -61.1316681852],
        [0.0, 0.0, 0.0, 910.66935071, -6.8952544939],
        [0.0, 0.0, 0.0, 0.0, 924.076349993],
    ],
    [1231.74097046, 767.188820378, 1171.8091945, 904.803974298, 925.507165831],
    86.00764637044601,
)


def factored_regression(data: tuple[int, list, list, float], prior: Any, width: float | None) -> Problem:
    """y ~ N(Xβ, σ²), β flat or ~ N(0, width²), prior(log σ); in terms of β and log σ."""
    count, root, projected, rest = data

    def make(xp: Any) -> Any:
        r, target = xp.asarray(np.array(root)).T, xp.asarray(np.array(projected))

        def log_prob(z: Array) -> Array:
            beta, log_sigma = z[..., :-1], z[..., -1]
            squares = xp.square(target - beta @ r).sum(-1) + rest
            shrunk = 0.0 if width is None else 0.5 * xp.square(beta / width).sum(-1)
            likelihood = -count * log_sigma - 0.5 * squares * xp.exp(-2 * log_sigma)
            return likelihood + prior(xp, log_sigma) - shrunk

        return log_prob

    return Problem(make, len(projected) + 1)


def kidiq() -> Problem:
    return factored_regression(KIDIQ, lambda xp, s: log_half_cauchy(xp, s, 2.5), None)


def sblri() -> Problem:
    return factored_regression(SBLRI, lambda xp, s: log_half_normal(xp, s, 10.0), 10.0)


def normal(mean: np.ndarray, precision: np.ndarray) -> Problem:
    """N(mean, precision⁻¹)."""

    def make(xp: Any) -> Any:
        center, matrix = xp.asarray(mean), xp.asarray(precision)
        return lambda z: -0.5 * ((z - center) @ matrix * (z - center)).sum(-1)

    return Problem(make, len(mean), (mean, np.sqrt(np.diag(np.linalg.inv(precision)))))


def scaled_regression() -> Problem:
    """Eight features with scales from 10⁻³ to 10³, known noise, β flat."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, 8)) * np.logspace(-3, 3, 8)
    y = x @ (rng.normal(size=8) / np.logspace(-3, 3, 8)) + rng.normal(size=100)
    return normal(np.linalg.solve(x.T @ x, x.T @ y), x.T @ x)


def correlated_regression() -> Problem:
    """Twenty features with pairwise correlations of 0.999, known noise, β ~ N(0, 10²)."""
    rng = np.random.default_rng(2)
    x = np.sqrt(0.999) * rng.normal(size=(100, 1)) + np.sqrt(0.001) * rng.normal(size=(100, 20))
    y = x @ rng.normal(size=20) + rng.normal(size=100)
    precision = x.T @ x + np.eye(20) / 100
    return normal(np.linalg.solve(precision, x.T @ y), precision)


def separated_logistic() -> Problem:
    """Labels that two of six features, of very different scales, separate; β ~ N(0, 5²)."""
    rng = np.random.default_rng(3)
    x = np.c_[np.ones(60), rng.normal(size=(60, 6))] * np.array([1, 1, 10, 0.1, 1, 5, 1])
    y = np.where(2 * x[:, 1] + 0.3 * x[:, 2] > 0.2, 1.0, -1.0)

    def make(xp: Any) -> Any:
        signed = xp.asarray(y[:, None] * x).T
        return lambda z: log_sigmoid(xp, z @ signed).sum(-1) - 0.5 * xp.square(z / 5).sum(-1)

    return Problem(make, 7)


def autoregression() -> Problem:
    """y_t ~ N(α + Σ_k φ_k y_{t−k}, σ²) with five lags of a slow series; in terms of α, φ, log σ."""
    rng = np.random.default_rng(4)
    y = [3.0] * 5
    for _ in range(200):
        y.append(0.3 + 0.7 * y[-1] + 0.5 * y[-2] - 0.3 * y[-3] + 0.05 * y[-5] + 0.4 * rng.normal())
    series = np.array(y)
    x = np.stack([np.ones(200), *(series[5 - k : -k] for k in range(1, 6))], 1)
    q, r = np.linalg.qr(x)
    projected = q.T @ series[5:]
    rest = float(np.square(series[5:] - q @ projected).sum())
    data = (200, r.tolist(), projected.tolist(), rest)
    return factored_regression(data, lambda xp, s: log_half_cauchy(xp, s, 2.5), 10.0)


def arma() -> Problem:
    """y_t = μ + φ y_{t−1} + θ e_{t−1} + e_t, with no bounds on φ and θ: far out, errors grow as θ^t."""
    rng = np.random.default_rng(5)
    noise, y = 0.5 * rng.normal(size=201), [1.0]
    for t in range(1, 201):
        y.append(0.5 + 0.6 * y[-1] + 0.5 * noise[t - 1] + noise[t])
    series = np.array(y[1:])

    def make(xp: Any) -> Any:
        now, before = xp.asarray(series[1:]), xp.asarray(series[:-1])

        def log_prob(z: Array) -> Array:
            mu, phi, theta, log_sigma = (z[..., i] for i in range(4))
            innovation = now - mu[..., None] - phi[..., None] * before
            error = recursion(xp, -theta, innovation)
            likelihood = -0.5 * (xp.square(error) * xp.exp(-2 * log_sigma)[..., None]).sum(-1)
            prior = -0.5 * (xp.square(mu / 10) + xp.square(phi / 2) + xp.square(theta / 2))
            scale = -(len(series) - 1) * log_sigma + log_half_cauchy(xp, log_sigma, 2.5)
            return likelihood + prior + scale

        return log_prob

    return Problem(make, 4)


def garch() -> Problem:
    """y_t ~ N(μ, σ_t²), σ_t² = α₀ + α₁ (y_{t−1} − μ)² + β σ_{t−1}²; in terms of μ, log α₀ and logits."""
    rng = np.random.default_rng(6)
    y, variance = [1.0], 1.0
    for _ in range(200):
        variance = 0.3 + 0.4 * (y[-1] - 1.0) ** 2 + 0.3 * variance
        y.append(1.0 + np.sqrt(variance) * rng.normal())
    series = np.array(y[1:])

    def make(xp: Any) -> Any:
        data, first = xp.asarray(series), float(series.var())

        def log_prob(z: Array) -> Array:
            mu, log_base, logit, other = (z[..., i] for i in range(4))
            alpha = xp.exp(log_sigmoid(xp, logit))
            beta = (1 - alpha) * xp.exp(log_sigmoid(xp, other))
            residual = xp.square(data - mu[..., None])
            input_ = xp.exp(log_base)[..., None] + alpha[..., None] * residual[..., :-1]
            start = first + xp.zeros_like(residual[..., :1])
            joined = xp.concatenate([start, input_], -1)
            variance = recursion(xp, beta, joined)
            likelihood = -0.5 * (residual / variance + xp.log(variance)).sum(-1)
            prior = -0.5 * (xp.square(mu / 10) + xp.square(log_base / 3))
            jacobian = sum(log_sigmoid(xp, x) + log_sigmoid(xp, -x) for x in (logit, other))
            return likelihood + prior + jacobian

        return log_prob

    return Problem(make, 4)


def heteroscedastic() -> Problem:
    """y ~ N(a + b x, e^{2 (c + d x)}) with x between 0 and 50, priors N(0, 10²)."""
    rng = np.random.default_rng(7)
    x = rng.uniform(0, 50, size=80)
    y = 3 + 0.7 * x + np.exp(-1 + 0.05 * x) * rng.normal(size=80)

    def make(xp: Any) -> Any:
        inputs, outputs = xp.asarray(x), xp.asarray(y)

        def log_prob(z: Array) -> Array:
            a, b, c, d = (z[..., i, None] for i in range(4))
            log_scale = c + d * inputs
            residual = (outputs - a - b * inputs) * xp.exp(-log_scale)
            return -(0.5 * xp.square(residual) + log_scale).sum(-1) - 0.5 * xp.square(z / 10).sum(-1)

        return log_prob

    return Problem(make, 4)


def poisson_regression() -> Problem:
    """Counts with log rates a + xᵀβ of five features that reach 6; a and β ~ N(0, 5²)."""
    rng = np.random.default_rng(8)
    x = np.c_[np.ones(60), rng.normal(size=(60, 5)) * np.array([0.3, 1, 1, 2, 2])]
    y = rng.poisson(np.exp(x @ np.array([1.0, 0.5, -0.4, 0.3, 0.2, -0.1]))).astype(float)

    def make(xp: Any) -> Any:
        inputs, counts = xp.asarray(x).T, xp.asarray(y)

        def log_prob(z: Array) -> Array:
            log_rate = z @ inputs
            return (counts * log_rate - xp.exp(log_rate)).sum(-1) - 0.5 * xp.square(z / 5).sum(-1)

        return log_prob

    return Problem(make, 6, held_out=True)


def weibull_survival() -> Problem:
    """Times t ~ Weibull(k, e^{a + bx}), some cut off, x between 0 and 30; in terms of log k, a, b."""
    rng = np.random.default_rng(9)
    x = rng.uniform(0, 30, size=80)
    t = np.exp(2 - 0.06 * x) * rng.weibull(1.7, size=80)
    cut = t > 6.0

    def make(xp: Any) -> Any:
        inputs, log_t = xp.asarray(x), xp.asarray(np.log(np.minimum(t, 6.0)))
        seen = xp.asarray(1.0 - cut)

        def log_prob(z: Array) -> Array:
            log_k, a, b = (z[..., i, None] for i in range(3))
            k = xp.exp(log_k)
            u = k * (log_t - a - b * inputs)
            return (seen * (log_k + u) - xp.exp(u)).sum(-1) - 0.5 * xp.square(z / 5).sum(-1)

        return log_prob

    return Problem(make, 3, held_out=True)
