"""Labels explained by a Gaussian process, and unbiased estimates of how well."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.special import log_ndtr

GAIN = 1e-4  # Newton's method is done when a step gains less; the next would gain about its square
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
    samples of Laplace's approximation; without derivatives.  [Filippone & Girolami 2014; Graham 2018, §3.6.2]
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
        self._with_one, self._with_zero = self._ones.nonzero()[:, 0], self._zeros.nonzero()[:, 0]
        self._points = points
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
        concentration = torch.ones(*shape, self.dim, dtype=self._points.dtype)
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
        scaled = self._points * (-x[..., None, 1:]).exp()
        product = scaled @ scaled.mT
        half = 0.5 * product.diagonal(dim1=-2, dim2=-1)
        kernel = product.sub_(half[..., None]).sub_((half - x[..., :1])[..., None, :]).exp_()
        kernel.diagonal(dim1=-2, dim2=-1).add_(self.jitter)
        return kernel

    def log_likelihood(self, latent: Tensor) -> Tensor:
        """log p(y | f)  [..., n] -> [...]"""
        ones, zeros = (counts.to(latent) for counts in (self._ones, self._zeros))
        up, down = latent[..., self._with_one], -latent[..., self._with_zero]
        return log_ndtr(up) @ ones[self._with_one] + log_ndtr(down) @ zeros[self._with_zero]

    def slope_and_curvature(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """∇ and −∇² of log p(y | f), the latter diagonal  [..., n]"""
        ones, zeros = (counts.to(latent) for counts in (self._ones, self._zeros))
        up, down = _ratio(latent), _ratio(-latent)
        return ones * up - zeros * down, ones * up * (up + latent) + zeros * down * (down - latent)

    def prepare(self, x: Tensor) -> Fit:
        """Laplace's approximation for each x  [..., 1 + K]

        The mode is sought in single precision.  One more step of Newton's method, by the factor that the
        approximation needs anyway, makes it exact enough: the error squares.
        """
        covariance = self.covariance(x)
        prior_root, failed = torch.linalg.cholesky_ex(covariance)
        latent = self.near_mode(covariance.float(), x[..., 0].float()).to(x)
        slope, curvature = self.slope_and_curvature(latent)
        scaled = curvature.sqrt()[..., None] * prior_root
        root = torch.linalg.cholesky_ex(_plus_identity(scaled.mT @ scaled)).L
        mode = _solve(root, _times(prior_root.mT, curvature * latent + slope))
        return Fit(prior_root, mode.where((failed == 0)[..., None], torch.nan), root)

    def near_mode(self, covariance: Tensor, log_scale: Tensor) -> Tensor:
        """f near the mode of the latent values, NaN where it is not found.  [..., n]

        Newton's method; each step factors I + W^½ K W^½ once, which is well conditioned.  The start explains
        every label by half a standard deviation of the prior, and is about half as many steps from the mode
        as 0 is.  [Rasmussen & Williams 2006, algorithm 3.1]
        """
        sign = (self._ones - self._zeros).sign().to(covariance)
        latent = 0.5 * (0.5 * log_scale).exp()[..., None] * sign
        weight, value = torch.zeros_like(latent), torch.full_like(log_scale, -torch.inf)
        found, inside = torch.zeros_like(log_scale, dtype=torch.bool), torch.empty_like(covariance)
        for _ in range(MAX_ITERATIONS):
            slope, curvature = self.slope_and_curvature(latent)
            root, right = curvature.sqrt(), curvature * latent + slope
            torch.mul(covariance, root[..., None], out=inside)
            factor = torch.linalg.cholesky_ex(_plus_identity(inside.mul_(root[..., None, :]))).L
            full = right - root * _solve(factor, root * _times(covariance, right))
            weight, latent, new = self._search(covariance, weight, full, value, found)
            found |= new - value < GAIN
            value = new
            if found.all():
                break
        return latent.where(found[..., None], torch.nan)

    def _search(
        self, covariance: Tensor, weight: Tensor, full: Tensor, value: Tensor, found: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """From K⁻¹f = weight towards `full`, half as far where that would lower the density."""
        share = (~found).to(weight)
        for _ in range(20):
            tried = weight + share[..., None] * (full - weight)
            latent = _times(covariance, tried)
            new = self.log_likelihood(latent) - 0.5 * (tried * latent).sum(-1)
            worse = ~found & ~(new >= value - GAIN)
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


def _plus_identity(matrix: Tensor) -> Tensor:
    """In place."""
    matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    return matrix


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]


def _solve(root: Tensor, vector: Tensor) -> Tensor:
    """(C Cᵀ)⁻¹ v  [..., n]"""
    inner = torch.linalg.solve_triangular(root, vector[..., None], upper=False)
    return torch.linalg.solve_triangular(root.mT, inner, upper=True)[..., 0]


def _ratio(z: Tensor) -> Tensor:
    """φ(z) / Φ(z), also far to the left."""
    return (-0.5 * z.square() - 0.5 * math.log(2 * math.pi) - log_ndtr(z)).exp()
