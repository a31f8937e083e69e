"""Clouds of weighted particles, and kernels that learn their settings from them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.adaptation.step_size import step_size_of, with_step_size
from hmcvi.adaptation.tunable import tuning
from hmcvi.chain import Phase
from hmcvi.dynamics.metrics import CholeskyMetric, DiagonalMetric, IdentityMetric, Metric
from hmcvi.evidence.resampling import shares, systematic, take
from hmcvi.internal.checks import one_of
from hmcvi.kernels.mcmc.kernel import Info, Kernel

MASSES = ("diagonal", "dense", "fixed")
ACCEPTANCE = 0.8  # aimed at by gradient kernels
FIRST_GAIN, GAIN = 1.0, 0.5  # of the step size by the error of the acceptance
LENGTH = 1.25  # of a trajectory in standard deviations; a quarter of a turn, π/2, costs more than it gains
MOST_STEPS = 32
PRIOR = 5  # particles that the variances of the last temperature are worth


class Cloud(NamedTuple):
    """Weighted particles on islands that never meet, so that their estimates are independent."""

    state: Phase  # [islands, N, *items, ...]
    log_weight: Tensor  # since the last resampling  [islands, N, *items]
    log_z: Tensor  # of all weights before it  [islands, *items]

    def shares(self) -> Tensor:
        """Weights that sum to one for each item, every island having the same share."""
        return shares(self.log_weight) / len(self.log_weight)

    def total(self) -> Tensor:
        """log weights with those of the islands: Z is their mean over all particles.  [islands, N, *items]"""
        return self.log_z[:, None] + self.log_weight

    def estimates(self) -> Tensor:
        """log Z by each island.  [islands, *items]"""
        return self.log_z + self.log_weight.logsumexp(1) - math.log(self.log_weight.shape[1])

    def weighted(self, step: Tensor, gap: Tensor) -> Cloud:
        """At inverse temperature β + δ: log w ← log w + δ (log γ − log q).  [*items], [islands, N, *items]"""
        return self._replace(log_weight=self.log_weight + (step * gap).where(step > 0, 0.0))

    def pooled(self) -> Cloud:
        """All islands as one."""
        state = Phase(*(None if part is None else part.flatten(0, 1)[None] for part in self.state))  # type: ignore[arg-type]
        return Cloud(state, self.total().flatten(0, 1)[None], torch.zeros_like(self.log_z[:1]))

    def resampled(self, count: int, generator: torch.Generator) -> Cloud:
        """`count` particles of each island, equally weighted."""
        index = systematic(self.log_weight, count, generator)
        return Cloud(self._taken(index), torch.zeros_like(index, dtype=torch.float64), self.estimates())

    def resampled_below(self, share: float, generator: torch.Generator) -> Cloud:
        """The islands resampled that have fewer effective particles than this share of them."""
        size = self.log_weight.shape[1]
        due = 1 / shares(self.log_weight).square().sum(1) < share * size  # [islands, *items]
        if not due.any():
            return self
        index = systematic(self.log_weight, size, generator)
        same = torch.arange(size, device=index.device).view(-1, *[1] * (index.ndim - 2))
        return Cloud(
            self._taken(index.where(due[:, None], same)),
            self.log_weight.where(~due[:, None], 0.0),
            self.estimates().where(due, self.log_z),
        )

    def _taken(self, index: Tensor) -> Phase:
        """Particles by index [islands, count, *items], their momenta forgotten."""
        parts = self.state._replace(momentum=None)
        return Phase(*(None if part is None else take(part, index) for part in parts))  # type: ignore[arg-type]


class CloudTuning:
    """Mass from the covariance of the particles of other islands, step size from acceptance.

    Every item has its own.

    mass: "diagonal", "dense" or "fixed"; None: diagonal, or dense where the kernel has a full metric already.
    log ε ← log ε + g (acceptance − aim), the gain g halved where the acceptance crosses the aim.
    A kernel that leaves its number of steps open makes trajectories of LENGTH in units of the mass.
    """

    def __init__(self, kernel: Kernel, mass: str | None = None) -> None:
        known = tuning(kernel)
        if mass is None:
            plain = isinstance(getattr(kernel, "metric", None), IdentityMetric | DiagonalMetric)
            mass = "diagonal" if plain else "dense"
        one_of("mass", mass, MASSES)
        self._kernel, self._mass = kernel, mass if known.metric else "fixed"
        self._tunes_step_size = known.step_size
        self._aim = ACCEPTANCE if kernel.uses_gradient else known.target_acceptance
        self._log_factor, self._error = torch.zeros(2, dtype=torch.float64)  # [*items], as are the next
        self._gain = torch.tensor(FIRST_GAIN, dtype=torch.float64)
        self._variance: Tensor | None = None  # [*items, d]

    def kernel(self) -> Kernel:
        """The kernel with the settings to use now."""
        kernel = self._kernel
        if self._tunes_step_size:
            given = step_size_of(kernel)
            kernel = with_step_size(kernel, given * self._log_factor.exp()[..., None].to(given))
        if getattr(kernel, "tunes_num_steps", False):
            steps = LENGTH / step_size_of(kernel).median()
            kernel = kernel.replace(num_steps=int(steps.round().clamp(1, MOST_STEPS)))
        return kernel

    def observe(self, cloud: Cloud) -> None:
        """Learn the mass."""
        if self._mass != "fixed":
            self._kernel = self._kernel.replace(metric=self._metric(cloud.state.position, cloud.shares()))

    def update(self, info: Info) -> None:
        """Learn the step size from a transition of chains [islands, M, *items]."""
        if not self._tunes_step_size:
            return
        error = info["acceptance_rate"].double().nan_to_num().mean((0, 1)).cpu() - self._aim
        gain = self._gain.expand_as(error)
        self._gain = (gain / 2).clamp(min=GAIN).where(error * self._error < 0, gain)
        self._error, self._log_factor = error, self._log_factor + self._gain * error

    def _metric(self, position: Tensor, share: Tensor) -> Metric:
        """M = Σ⁻¹ for each island, Σ the covariance of the particles of all others: [islands, 1, *items, …].

        Particles that were moved by what they had in common themselves would bias the estimate.
        Variances lean on those of the temperature before, so that they never vanish.  Correlations are
        shrunk by the share ESS / (ESS + d + 1), so that few particles do not make Σ singular.
        """
        islands, dim = len(position), position.shape[-1]
        variances, roots = [], []
        for island in range(islands):
            others = [i for i in range(islands) if i != island] or [island]
            particles = position[others].flatten(0, 1).double()
            weight = (share[others] * islands / len(others)).flatten(0, 1)[..., None]
            residual = particles - (weight * particles).sum(0)
            ess = 1 / weight.square().sum(0)  # [*items, 1]
            before = particles.var(0) if self._variance is None else self._variance
            scatter = ess * (weight * residual.square()).sum(0)
            variance = (scatter + PRIOR * before) / (ess - 1 + PRIOR)
            variances.append(variance)
            if self._mass == "dense":
                rows = (weight.sqrt() * residual / variance.sqrt()).movedim(0, -2)  # [*items, N, d]
                trust = ess[..., None] / (ess[..., None] + dim + 1)
                eye = torch.eye(dim).to(rows)
                correlation = eye.where(eye > 0, trust * rows.mT @ rows)
                root = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(correlation)))
                roots.append(root / variance.sqrt()[..., None])
        self._variance = torch.stack(variances).mean(0)  # [*items, d]
        if self._mass == "diagonal":
            return DiagonalMetric(-0.5 * torch.stack(variances)[:, None].log().to(position))
        return CholeskyMetric(torch.stack(roots)[:, None].to(position))
