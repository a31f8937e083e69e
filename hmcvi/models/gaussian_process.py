"""Labels explained by a Gaussian process, and unbiased estimates of how well."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.special import log_ndtr

TOLERANCE = 1e-9  # what a further step of Newton's method may gain
MAX_ITERATIONS = 50


class Fit(NamedTuple):
    """Laplace's approximation of the latent values f = L v: v is near N(mode, C⁻ᵀC⁻¹).  NaN if it failed."""

    prior_root: Tensor  # L, Cholesky factor of the covariance K  [..., n, n]
    mode: Tensor  # of v  [..., n]
    root: Tensor  # C, Cholesky factor of I + Lᵀ W L, W the curvature of −log p(y | f)  [..., n, n]


class ProbitProcess:
    """y_m = 1 with probability Φ(f(d_m)), f a Gaussian process of mean 0 and covariance

        k(d, d') = s exp(−½ Σ_k (d_k − d'_k)² / ℓ_k²).

    x = (log s, log ℓ_1, …, log ℓ_K), s ~ Gamma(1.1, rate 0.1), ℓ_k ~ Gamma(1, rate 1/3) a priori.
    features: [M, K], labels: [M], 0 or 1.  Points that occur more than once share their latent value, so that
    the matrices are as large as there are different points, n ≤ M.
    `prepare` and `log_estimate` make an estimator of the posterior density of x, from `num_importance`
    samples of Laplace's approximation.  [Filippone & Girolami 2014; Graham 2018, §3.6.2]
    """

    def __init__(
        self, features: Tensor, labels: Tensor, num_importance: int = 50, jitter: float = 1e-8
    ) -> None:
        if features.ndim != 2 or labels.shape != features.shape[:1]:
            raise ValueError(
                f"features must be [M, K] and labels [M], got {list(features.shape)} and {list(labels.shape)}"
            )
        if not ((labels == 0) | (labels == 1)).all():
            raise ValueError("labels must be 0 or 1")
        if num_importance < 1:
            raise ValueError(f"num_importance must be at least 1, got {num_importance}")
        points, place = features.unique(dim=0, return_inverse=True)
        counts = torch.zeros(2, len(points), dtype=features.dtype)
        self._zeros, self._ones = counts.index_put(
            (labels.long(), place), torch.ones_like(labels, dtype=features.dtype), accumulate=True
        )
        self._squares = (points[:, None] - points).square()  # [n, n, K]
        self.num_points, self.num_features = points.shape
        self.num_importance, self.jitter = num_importance, jitter

    @property
    def dim(self) -> int:
        """Of x."""
        return 1 + self.num_features

    @property
    def auxiliary_dim(self) -> int:
        """Of u, the normals behind the importance samples."""
        return self.num_importance * self.num_points

    def sample_prior(self, *shape: int, generator: torch.Generator | None = None) -> Tensor:
        """x  [*shape, 1 + K]"""
        concentration = torch.ones(*shape, self.dim, dtype=self._squares.dtype)
        concentration[..., 0] = 1.1
        draws = torch._standard_gamma(concentration, generator)
        rates = torch.full((self.dim,), 1 / 3, dtype=draws.dtype)
        rates[0] = 0.1
        return (draws / rates).log()

    def log_prior(self, x: Tensor) -> Tensor:
        """log p(x) up to a constant  [..., 1 + K] -> [...]"""
        scale, lengths = x[..., 0], x[..., 1:]
        return 1.1 * scale - scale.exp() / 10 + (lengths - lengths.exp() / 3).sum(-1)

    def covariance(self, x: Tensor) -> Tensor:
        """K  [..., 1 + K] -> [..., n, n]"""
        distance = torch.einsum("ijk, ...k -> ...ij", self._squares, (-2 * x[..., 1:]).exp())
        kernel = (x[..., :1, None] - 0.5 * distance).exp()
        return kernel + self.jitter * torch.eye(self.num_points, dtype=x.dtype, device=x.device)

    def log_likelihood(self, latent: Tensor) -> Tensor:
        """log p(y | f)  [..., n] -> [...]"""
        return (self._ones * log_ndtr(latent) + self._zeros * log_ndtr(-latent)).sum(-1)

    def slope_and_curvature(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """∇ and −∇² of log p(y | f), the latter diagonal  [..., n]"""
        up, down = _ratio(latent), _ratio(-latent)
        slope = self._ones * up - self._zeros * down
        return slope, self._ones * up * (up + latent) + self._zeros * down * (down - latent)

    def prepare(self, x: Tensor) -> Fit:
        """Laplace's approximation for each x  [..., 1 + K]"""
        covariance = self.covariance(x)
        prior_root, failed = torch.linalg.cholesky_ex(covariance)
        weight, latent, found = self._mode(covariance)
        mode = (prior_root.mT @ weight[..., None])[..., 0]  # L⁻¹f, as f = L Lᵀ weight
        _, curvature = self.slope_and_curvature(latent)
        scaled = curvature.sqrt()[..., None] * prior_root
        root, also_failed = torch.linalg.cholesky_ex(scaled.mT @ scaled + torch.eye(self.num_points).to(x))
        good = found & (failed == 0) & (also_failed == 0)
        return Fit(prior_root, mode.where(good[..., None], torch.nan), root)

    def _mode(self, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """K⁻¹f and f at the mode of the latent values, and whether it was found; by Newton's method.

        Each step factors B = I + W^½ K W^½ once, which is well conditioned.  A step that would go down is
        halved.  [Rasmussen & Williams 2006, algorithm 3.1]
        """
        weight = covariance.new_zeros(covariance.shape[:-1])
        latent, identity = weight, torch.eye(self.num_points).to(covariance)
        value, found = self.log_likelihood(latent), torch.zeros_like(weight[..., 0], dtype=torch.bool)
        for _ in range(MAX_ITERATIONS):
            slope, curvature = self.slope_and_curvature(latent)
            root = curvature.sqrt()
            factor = torch.linalg.cholesky_ex(identity + root[..., None] * covariance * root[..., None, :]).L
            right = curvature * latent + slope
            inner = root * (covariance @ right[..., None])[..., 0]
            full = right - root * torch.cholesky_solve(inner[..., None], factor)[..., 0]
            weight, latent, new = self._search(covariance, weight, full, value, found)
            found = found | (new - value < TOLERANCE)
            value = new
            if found.all():
                break
        return weight, latent, found

    def _search(
        self, covariance: Tensor, weight: Tensor, full: Tensor, value: Tensor, found: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """From K⁻¹f = weight towards `full`, half as far where that would lower the density."""
        share = (~found).to(weight)
        for _ in range(20):
            tried = weight + share[..., None] * (full - weight)
            latent = (covariance @ tried[..., None])[..., 0]
            new = self.log_likelihood(latent) - 0.5 * (tried * latent).sum(-1)
            worse = ~found & ~(new >= value - TOLERANCE)
            if not worse.any():
                break
            share = torch.where(worse, share / 2, share)
        return tried, latent, new

    def log_estimate(self, x: Tensor, auxiliary: Tensor, fit: Fit) -> Tensor:
        """log p(x) + log of the mean importance weight, an unbiased estimate of p(x, y).  [...]

        In coordinates v with f = L v the prior is N(0, I) and the approximation N(mode, C⁻ᵀC⁻¹).
        """
        normals = auxiliary.unflatten(-1, (self.num_importance, self.num_points))
        spread = torch.linalg.solve_triangular(fit.root.mT, normals.mT, upper=True).mT
        white = fit.mode[..., None, :] + spread  # [..., N, n]
        log_weight = (
            self.log_likelihood(white @ fit.prior_root.mT)
            - 0.5 * white.square().sum(-1)
            + 0.5 * normals.square().sum(-1)
        )
        log_volume = fit.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        mean = log_weight.logsumexp(-1) - math.log(self.num_importance)
        return self.log_prior(x) + mean - log_volume


def _ratio(z: Tensor) -> Tensor:
    """φ(z) / Φ(z), also far to the left."""
    return (-0.5 * z.square() - 0.5 * math.log(2 * math.pi) - log_ndtr(z)).exp()
