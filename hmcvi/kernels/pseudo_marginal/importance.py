"""Marginal densities of latent-variable models, estimated by importance sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hmcvi.internal.checks import at_least
from hmcvi.kernels.pseudo_marginal.estimators import Estimator
from hmcvi.kernels.pseudo_marginal.laplace import fit_laplace

LogJoint = Callable[[Tensor, Tensor], Tensor]


class LatentProposal(Protocol):
    """Proposal distribution q(z | x) of the latent variables, z a function of standard normals."""

    @property
    def latent_dim(self) -> int:
        """k"""

    def prepare(self, target: Tensor) -> Any:
        """What depends on x alone  [..., d] -> tensors [..., *]"""

    def draw(self, normals: Tensor, prepared: Any) -> tuple[Tensor, Tensor]:
        """z and log q(z | x) of standard normals  [..., N, k] -> [..., N, k], [..., N]"""


class Gaussian(NamedTuple):
    """N(loc, R Rᵀ), R diagonal or triangular."""

    loc: Tensor  # [..., k]
    root: Tensor  # R [..., k, k], or its diagonal [..., k]

    def draw(self, normals: Tensor) -> tuple[Tensor, Tensor]:
        """loc + R n and its log density  [..., N, k] -> [..., N, k], [..., N]"""
        if self.root.ndim == self.loc.ndim:
            diagonal, spread = self.root, self.root[..., None, :] * normals
        else:
            diagonal, spread = self.root.diagonal(dim1=-2, dim2=-1), normals @ self.root.mT
        log_prob = -0.5 * normals.square().sum(-1) - 0.5 * normals.shape[-1] * math.log(2 * math.pi)
        log_volume = diagonal.abs().log().sum(-1, keepdim=True)
        return self.loc[..., None, :] + spread, log_prob - log_volume


class GaussianProposal:
    """q(z | x) = N(loc(x), scale(x)²): the prior of z if that is normal, or a network fitted to p(z | x, y).

    law(x [..., d]) -> loc [..., k] and scale [..., k], or a triangular root of the covariance [..., k, k].
    """

    def __init__(self, law: Callable[[Tensor], tuple[Tensor, Tensor]], latent_dim: int) -> None:
        self._loc_and_scale, self.latent_dim = law, latent_dim

    def prepare(self, target: Tensor) -> Gaussian:
        return Gaussian(*self._loc_and_scale(target))

    def draw(self, normals: Tensor, prepared: Gaussian) -> tuple[Tensor, Tensor]:
        return prepared.draw(normals)


class LaplaceProposal:
    """q(z | x) = N(mode, (−H)⁻¹), mode and Hessian H of log p(x, z) as a function of z.

    log_joint(x [..., d], z [..., k]) -> [...].  Where Newton's method does not find the mode in
    `max_iterations`, the estimate is zero and a chain does not go there.  [Graham 2018, §C.1]
    """

    def __init__(self, log_joint: LogJoint, latent_dim: int, max_iterations: int = 50) -> None:
        at_least(1, max_iterations=max_iterations)
        self.log_joint, self.latent_dim, self.max_iterations = log_joint, latent_dim, max_iterations

    def prepare(self, target: Tensor) -> Gaussian:
        return Gaussian(*fit_laplace(self.log_joint, target, self.latent_dim, self.max_iterations))

    def draw(self, normals: Tensor, prepared: Gaussian) -> tuple[Tensor, Tensor]:
        return prepared.draw(normals)


class ImportanceEstimator(Estimator):
    """ε(x, u) = (1/N) Σ_n p(x, z_n) / q(z_n | x), an estimate of ∫ p(x, z) dz, z_n ~ q made of normals u_n.

    log_joint(x [..., 1, d], z [..., N, k]) -> [..., N], up to a constant.  proposal: q.  num_importance: N.
    shapes: {name: shape} of the variables in x, for draws; log_joint and proposal see one vector.
    chainwise: as in `Estimator`, of log_joint and proposal.
    [Graham 2018, (3.4) and (3.7)]

    >>> def log_joint(x, z):  # x ~ N(0, 1), z | x ~ N(x, 1), y = 2 | z ~ N(z, 1)
    ...     return -0.5 * ((x**2 + (z - x) ** 2 + (2 - z) ** 2)).sum(-1)
    >>> estimator = ImportanceEstimator(log_joint, LaplaceProposal(log_joint, 1), num_importance=3)
    >>> estimator.auxiliary_dim
    3
    """

    def __init__(
        self,
        log_joint: LogJoint,
        proposal: LatentProposal,
        num_importance: int = 1,
        shapes: Mapping[str, Sequence[int]] | None = None,
        chainwise: bool = False,
    ) -> None:
        at_least(1, num_importance=num_importance)
        self.log_joint, self.proposal, self.num_importance = log_joint, proposal, num_importance
        super().__init__(
            self._log_mean_weight,
            num_importance * proposal.latent_dim,
            prepare=proposal.prepare,
            shapes=shapes,
            chainwise=chainwise,
        )

    def _named(self, target: Tensor) -> Tensor:
        return target

    def _log_mean_weight(self, target: Tensor, auxiliary: Tensor, prepared: Any) -> Tensor:
        normals = auxiliary.unflatten(-1, (self.num_importance, self.proposal.latent_dim))
        latent, log_proposal = self.proposal.draw(normals, prepared)
        log_weight = self.log_joint(target[..., None, :], latent) - log_proposal
        return torch.logsumexp(log_weight, -1) - math.log(self.num_importance)
