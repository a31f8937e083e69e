"""Labels explained by a Gaussian process, and unbiased estimates of how well."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.special import log_ndtr

GAIN = 1e-3  # Newton's method is done when a step gains less; the next would gain about its square
STEPS = 2  # of Newton's method for each factorisation
# of a step that are tried, the full one preferred; at first it falls short
SHARES = (1 / 64, 1 / 8, 0.5, 1.0, 1.5, 2.0, 3.0)
MAX_ITERATIONS = 50
CACHED = 3  # chains whose matrices are worked on at once: those of more leave the cache
BLOCKS = 4  # of columns, for the product of a triangular matrix with itself


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
        # where the search for a mode begins: a guess, and from there the mode for the prior means of s and ℓ
        self._start = 0.5 * (self._ones - self._zeros).sign()
        usual = features.new_tensor([11.0, *[3.0] * self.num_features]).log()
        mode = self.near_mode(self.covariance(usual).float(), usual[0].float())
        self._start = (-0.5 * usual[0]).exp() * mode.to(features)

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
        half = 0.5 * scaled.square().sum(-1, keepdim=True)
        one = torch.ones_like(half)
        left = torch.cat([scaled, -half, one], -1)
        right = torch.cat([scaled, one, x[..., None, :1] - half], -1)
        kernel = (left @ right.mT).exp_()  # log s − ½ |d − d'|², as one product
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
        flat, n = x.reshape(-1, self.dim), self.num_points
        whole = Fit(*(x.new_empty(len(flat), *shape) for shape in ((n, n), (n,), (n, n))))
        for start in range(0, len(flat), CACHED):
            rows = slice(start, start + CACHED)
            for kept, part in zip(whole, self._fit(flat[rows]), strict=True):
                kept[rows] = part
        return Fit(*(part.view(*x.shape[:-1], *part.shape[1:]) for part in whole))

    def _fit(self, x: Tensor) -> Fit:
        covariance = self.covariance(x)
        prior_root, failed = torch.linalg.cholesky_ex(covariance)
        latent = self.near_mode(covariance.float(), x[..., 0].float()).to(x)
        slope, curvature = self.slope_and_curvature(latent)
        root = torch.linalg.cholesky_ex(_plus_identity(_gram(curvature.sqrt()[..., None] * prior_root))).L
        mode = _solve(root, _times(curvature * latent + slope, prior_root))
        return Fit(prior_root, mode.where((failed == 0)[..., None], torch.nan), root)

    def near_mode(self, covariance: Tensor, log_scale: Tensor) -> Tensor:
        """f near the mode of the latent values, NaN where it is not found.  [..., n]

        Newton's method from the mode at the prior means of s and ℓ, in proportion to √s.  Two steps for each
        factorisation of I + W^½ K W^½, which is well conditioned; chains that are done leave the others.
        [Rasmussen & Williams 2006, algorithm 3.1]
        """
        at = (0.5 * log_scale).exp()[..., None] * self._start.to(covariance)
        shape, at = at.shape, at.reshape(-1, self.num_points)
        covariance = covariance.reshape(-1, *covariance.shape[-2:])
        modes, rows = torch.full_like(at, torch.nan), torch.arange(len(at), device=at.device)  # not found yet
        weight = latent = torch.zeros_like(at)  # K⁻¹f and f, from where the first step is measured
        value = torch.full_like(at[:, 0], -torch.inf)
        for _ in range(MAX_ITERATIONS):
            before, curvature = value, self.slope_and_curvature(at)[1]
            root = curvature.sqrt()
            inside = (covariance * root[..., None]).mul_(root[..., None, :])
            factor = torch.linalg.cholesky_ex(_plus_identity(inside)).L
            for _ in range(STEPS):
                right = curvature * at + self.slope_and_curvature(at)[0]
                full = right - root * _solve(factor, root * _times(right, covariance))
                weight, latent, value = self._search(weight, latent, full, _times(full, covariance))
                at = latent
            searching = value - before >= GAIN
            modes[rows[~searching]] = at[~searching]
            if not searching.any():
                break
            if not searching.all():
                rows, covariance, weight, latent, value = (
                    part[searching] for part in (rows, covariance, weight, latent, value)
                )
                at = latent
        return modes.view(shape)

    def _search(
        self, weight: Tensor, latent: Tensor, full: Tensor, full_latent: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The highest of a few points on the line from (K⁻¹f, f) through the end of a full step."""
        share = torch.tensor(SHARES).to(weight).view(-1, *[1] * weight.ndim)
        weights, latents = weight + share * (full - weight), latent + share * (full_latent - latent)
        values = self.log_likelihood(latents) - 0.5 * (weights * latents).sum(-1)
        best = (values - GAIN * (share[..., 0] != 1)).argmax(0)[
            None
        ]  # rounding shall not prefer another share
        place = best[..., None].expand(1, *weight.shape)
        return weights.gather(0, place)[0], latents.gather(0, place)[0], values.gather(0, best)[0]

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


def _gram(lower: Tensor) -> Tensor:
    """The lower triangle of LᵀL, all that a Cholesky factorisation looks at, without most of the zeros of L.

    [..., n, n]
    """
    size, gram = lower.shape[-1], torch.zeros_like(lower)
    for start, end in pairwise(size * block // BLOCKS for block in range(BLOCKS + 1)):
        below = lower[..., start:, :]
        gram[..., start:, start:end] = below[..., start:].mT @ below[..., start:end]
    return gram


def _times(vector: Tensor, matrix: Tensor) -> Tensor:
    """vᵀA, several times as fast as A v, which is the same if A is symmetric.  [..., n]"""
    return (vector[..., None, :] @ matrix)[..., 0, :]


def _solve(root: Tensor, vector: Tensor) -> Tensor:
    """(C Cᵀ)⁻¹ v  [..., n]"""
    inner = torch.linalg.solve_triangular(root, vector[..., None], upper=False)
    return torch.linalg.solve_triangular(root.mT, inner, upper=True)[..., 0]


def _ratio(z: Tensor) -> Tensor:
    """φ(z) / Φ(z), also far to the left."""
    return (-0.5 * z.square() - 0.5 * math.log(2 * math.pi) - log_ndtr(z)).exp()
