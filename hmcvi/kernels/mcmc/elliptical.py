"""Slice sampling on ellipses, for targets near a normal distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.metrics import CholeskyMetric, DiagonalMetric, Metric
from hmcvi.internal import random
from hmcvi.kernels.mcmc.bracket import Point
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.kernels.mcmc.slice import shrink


@dataclass(frozen=True, eq=False)
class EllipticalSlice(Kernel):
    """z(θ) = μ + (z − μ) cos θ + n sin θ, n ~ N(0, Σ); θ uniform on a circle cut at random, shrunk until

        log γ(z') − log N(z'; μ, Σ) > log h,   h ~ U(0, γ(z) / N(z; μ, Σ)).

    `density` is the full target γ, prior times likelihood if N(μ, Σ) is a prior, not the likelihood alone:
    the normal density is divided out here.  It may be any guess and the kernel is exact; with a guess of
    heavier tails than γ the slices are wide.
    mean: μ, [d] or a number.  covariance: Σ [d, d], variances [d], or one variance.
    [Murray, Adams & MacKay 2010; Graham 2018, algorithm 5, with > in (2.50)]

    >>> kernel = EllipticalSlice(Density(lambda z: -0.5 * z.square().sum(-1)), mean=0.0, covariance=2.0)
    >>> state, info = kernel.step(kernel.init(torch.zeros(3, 2)), torch.Generator().manual_seed(0))
    >>> state.position.shape, sorted(info)
    (torch.Size([3, 2]), ['accepted', 'num_evaluations', 'num_shrinks'])
    """

    density: Density
    mean: float | Tensor = 0.0
    covariance: float | Tensor = 1.0
    _normal: Metric = field(init=False, repr=False)  # N(0, Σ)

    def __post_init__(self) -> None:
        mean, covariance = _tensor(self.mean), _tensor(self.covariance)
        if mean.ndim > 1:
            raise ValueError(f"mean must be a number or [d], got {list(mean.shape)}")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)
        object.__setattr__(self, "_normal", _normal(covariance))

    def init(self, position: Tensor) -> Phase:
        for name, given in (("mean", self.mean), ("covariance", self.covariance)):
            value = _tensor(given)
            if value.ndim == 0:
                continue  # numbers fit everything
            if len(value) != position.shape[-1]:
                raise ValueError(f"positions have {position.shape[-1]} dimensions, the {name} {len(value)}")
            if (value.dtype, value.device) != (position.dtype, position.device):
                raise ValueError(
                    f"positions are {position.dtype} on {position.device}, the {name} is {value.dtype} on "
                    f"{value.device}: give both the same dtype and device"
                )
        state: Phase = super().init(position)
        return state

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        log_prob = state.log_density(self.density)
        here = state.position - self.mean
        white_here, white_there = self._normal.whiten(here), random.standard_normal(here, generator)
        there = self._normal.color(white_there)

        def ellipse(angle: Tensor) -> Point:
            cos, sin = angle.cos()[..., None], angle.sin()[..., None]
            position = self.mean + here * cos + there * sin
            log_prob = self.density.finite_log_prob(position)
            return Point(position, log_prob, log_prob + _energy(white_here * cos + white_there * sin))

        height = log_prob + _energy(white_here) + random.uniform(log_prob, generator).log()
        upper = 2 * math.pi * random.uniform(log_prob, generator)
        return shrink(
            ellipse, height, upper - 2 * math.pi, upper, state._replace(log_prob=log_prob), generator
        )


def _tensor(value: float | Tensor) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)


def _energy(white: Tensor) -> Tensor:
    """−log N(z; μ, Σ) up to a constant, from L⁻¹(z − μ).  [..., d] -> [...]"""
    return 0.5 * white.square().sum(-1)


def _normal(matrix: Tensor) -> Metric:
    """N(0, Σ)"""
    if matrix.ndim > 2 or (matrix.ndim == 2 and matrix.shape[0] != matrix.shape[1]):
        raise ValueError(f"covariance must be [d, d], [d] or a number, got {list(matrix.shape)}")
    if matrix.ndim < 2:
        if not (matrix > 0).all() or not matrix.isfinite().all():
            raise ValueError(f"variances must be positive, got {matrix.tolist()}")
        return DiagonalMetric(0.5 * matrix.log())
    root, failed = torch.linalg.cholesky_ex(matrix)
    if failed or not torch.allclose(matrix, matrix.mT):
        raise ValueError(
            "covariance must be symmetric and positive definite: add a small multiple of the identity, or "
            "give variances [d]"
        )
    return CholeskyMetric(root)
