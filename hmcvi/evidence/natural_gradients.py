"""Normal distributions fitted by natural gradients: robust to bad starts, indifferent to units."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.evidence.fits import Fit
from hmcvi.internal.checks import positive, whole
from hmcvi.internal.random import standard_normal
from hmcvi.internal.seeds import generator as seeded

RATE, DECAY = 0.2, 0.2  # ρ at first, and how soon it falls at the end
FAR = 3.0  # residuals longer than this multiple of their median are shortened
WINDOW = 25  # steps over which the ELBO is averaged
LEAST_SAMPLES, MOST_SAMPLES = 64, 512


R = TypeVar("R", bound="Root")


class Root(Protocol):
    """L of a batch of normal distributions N(μ, L Lᵀ)."""

    def __matmul__(self, vector: Tensor) -> Tensor:
        """L v  [..., d]"""

    def pull(self, vector: Tensor) -> Tensor:
        """Lᵀ v  [..., d]"""

    def log_det(self) -> Tensor:
        """log|L|  [...]"""

    def step(self, noise: Tensor, residual: Tensor, rate: float) -> Self:
        """L P^{−1/2}, P = I + ρG + ½(ρG)², G = −E[n rᵀ].  noise, residual: [samples, ..., d]"""

    def matrix(self) -> Tensor:
        """[..., d, d]"""


class FullRoot(NamedTuple):
    """A lower triangular matrix."""

    tril: Tensor  # [..., d, d]

    def __matmul__(self, vector: Tensor) -> Tensor:
        return _product(self.tril, vector)

    def pull(self, vector: Tensor) -> Tensor:
        return _product(self.tril.mT, vector)

    def log_det(self) -> Tensor:
        return self.tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def step(self, noise: Tensor, residual: Tensor, rate: float) -> FullRoot:
        slope = -rate * torch.einsum("k...i,k...j->...ij", noise, residual) / len(noise)
        slope = 0.5 * (slope + slope.mT)
        size = torch.linalg.matrix_norm(slope)[..., None, None]
        slope = slope * (0.5 * noise.shape[-1] ** 0.5 / size).clamp(max=1.0)
        identity = torch.eye(noise.shape[-1]).to(slope)
        factor = torch.linalg.cholesky(identity + slope + 0.5 * slope @ slope)
        return FullRoot(self.tril @ torch.linalg.cholesky(torch.cholesky_inverse(factor)))

    def matrix(self) -> Tensor:
        return self.tril


class DiagonalRoot(NamedTuple):
    """A diagonal matrix, for which only the diagonal of G counts."""

    scale: Tensor  # [..., d]

    def __matmul__(self, vector: Tensor) -> Tensor:
        return self.scale * vector

    def pull(self, vector: Tensor) -> Tensor:
        return self.scale * vector

    def log_det(self) -> Tensor:
        return self.scale.log().sum(-1)

    def step(self, noise: Tensor, residual: Tensor, rate: float) -> DiagonalRoot:
        slope = (-rate * (noise * residual).mean(0)).clamp(-0.5, 0.5)
        return DiagonalRoot(self.scale * (1 + slope + 0.5 * slope.square()).rsqrt())

    def matrix(self) -> Tensor:
        return torch.diag_embed(self.scale)


@torch.no_grad()
def fit_normal(
    density: Density,
    init: Tensor,
    full_rank: bool = True,
    scale: float = 0.1,
    max_steps: int = 500,
    seed: int = 0,
) -> Fit:
    """Normal distributions of largest ELBO, from each of several starts, by natural gradients; log ζ = ELBO.

    init: initial means [..., d].  The fits are independent; take the one of largest `log_zeta`.
    scale: the initial standard deviation.

    With z = μ + L n and r = Lᵀ∇log γ(z) + n, the residual force in units of the fit, zero if it is exact,

        μ ← μ + ρ L E[r],   L ← L P^{−1/2},   P = I + ρ G + ½ (ρ G)²,   G = −E[n rᵀ], symmetric.

    P is positive definite whatever G is, a step of μ is at most one standard deviation unless several in a
    row agree on the direction, long residuals are shortened, and a fit that has lost most of its points to
    zero density goes back to where it had them: a start far away, a wall in the density or an overflow costs
    steps, not the fit.  ρ is constant until the ELBO no longer rises, and falls from then on.
    [Lin, Schmidt & Khan 2020]

    >>> target = Density(lambda z: -0.5 * ((z - 300.0) / torch.tensor([1e-2, 10.0])).square().sum(-1))
    >>> fit = fit_normal(target, torch.zeros(2, dtype=torch.float64))
    >>> [round(x, 3) for x in fit.mean.tolist()], [round(x, 3) for x in fit.stddev.tolist()]
    ([300.0, 300.0], [0.01, 10.0])
    """
    density.check(init)
    first = torch.full_like(init, float(positive(scale, "scale")))
    root = FullRoot(torch.diag_embed(first)) if full_rank else DiagonalRoot(first)
    mean, fitted, elbo = ascend(density, init.detach(), root, max_steps, seed)
    return Fit(mean, fitted.matrix(), elbo)


def ascend(
    density: Density, mean: Tensor, root: R, max_steps: int, seed: int, num_samples: int | None = None
) -> tuple[Tensor, R, Tensor]:
    """Means [..., d], roots and ELBOs [...] at the end of `fit_normal`."""
    whole("max_steps", max_steps, 4 * WINDOW)
    generator = seeded(seed, device=mean.device)
    half = (num_samples or min(MOST_SAMPLES, max(LEAST_SAMPLES, 2 * mean.shape[-1]))) // 2
    falls_from, elbos, seen = max_steps - 2 * WINDOW, [], []
    last, radius = torch.zeros_like(mean), torch.ones_like(mean[..., :1])
    good = mean  # where most points have had a density
    for step in range(max_steps):
        if step == falls_from + 2 * WINDOW:
            break
        noise = standard_normal(mean.expand(half, *mean.shape), generator)
        noise = torch.cat([noise, -noise])
        value, force = density.finite_value_and_grad(mean + root @ noise)
        finite = value.isfinite()
        # where the density is zero the fit shrinks, as if its force were twice what the fit expects
        residual = _shortened((root.pull(force) + noise).where(finite[..., None], -noise))
        gaps = _log_ratios(value, noise, root)
        elbos.append(gaps.mean(0))
        seen.append(gaps.where(finite, torch.nan).nanmean(0))
        if step < falls_from and _is_flat(seen):
            falls_from = step
        rate = RATE / (1 + DECAY * max(0, step - falls_from))
        move = rate * residual.mean(0)
        agrees = torch.cosine_similarity(move, last, -1)[..., None] > 0.5
        radius = torch.where(agrees, 1.5 * radius, 1.0)
        length = move.norm(dim=-1, keepdim=True)
        is_lost = (finite.double().mean(0) < 0.5)[..., None]
        good = torch.where(is_lost, good, mean)
        moved = mean + root @ (move * (radius / length).clamp(max=1.0))
        mean, last = torch.where(is_lost, good, moved), move
        root = root.step(noise, residual, rate)
    return mean, root, torch.stack(elbos[-WINDOW:]).mean(0)


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    """A v, as one product of matrices for all samples.  [..., d, d], [samples, ..., d] or [..., d]"""
    if vector.ndim == matrix.ndim - 1:
        return (matrix @ vector[..., None])[..., 0]
    return (matrix @ vector.movedim(0, -1)).movedim(-1, 0)


def _shortened(residual: Tensor) -> Tensor:
    """Residuals no longer than `FAR` times the median length.  [samples, ..., d]"""
    length = residual.norm(dim=-1, keepdim=True)
    most = FAR * length.median(0).values
    return residual * (most / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp(max=1.0)


def _log_ratios(value: Tensor, noise: Tensor, root: Root) -> Tensor:
    """log γ(z) − log q(z), whose mean is the ELBO.  [samples, ...]"""
    log_q = -0.5 * (noise.square().sum(-1) + noise.shape[-1] * math.log(2 * math.pi)) - root.log_det()
    return value - log_q


def _is_flat(seen: list[Tensor]) -> bool:
    """Whether the ELBO, as far as it is finite, of no fit has risen lately by more than its noise.

    seen: NaN in steps in which no point had a density.  A fit without any is lost, and nothing to wait for.
    """
    if len(seen) < 2 * WINDOW:
        return False
    before, now = torch.stack(seen[-2 * WINDOW : -WINDOW]), torch.stack(seen[-WINDOW:])
    rise, noise = now.mean(0) - before.mean(0), now.std(0) / WINDOW**0.5
    is_still = rise <= torch.maximum(2 * noise, torch.full_like(noise, 0.01))
    is_lost = now.isnan().all(0)
    return bool((is_still | is_lost).all() and not is_lost.all())
