"""Chains from a Gaussian base, fitted to a density by stochastic gradients of the ELBO."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions.transforms import LowerCholeskyAffine
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from hmcvi.chain import Phase, Step, weigh
from hmcvi.density import Density, NormalDensity, standard_log_prob

BATCH = 2000  # of samples that are evaluated together


@dataclass(frozen=True)
class Training:
    """Adam with a cosine schedule after a short warm-up, its rare large gradients clipped."""

    num_steps: int
    num_particles: int = 20
    lr: float = 1e-2
    network_lr: float = 3e-3
    clip_norm: float = 100.0
    warmup: int = 100

    def factor(self, step: int) -> float:
        """Of the learning rates."""
        return min(1.0, (step + 1) / self.warmup) * 0.5 * (1 + math.cos(math.pi * step / self.num_steps))


class GaussianBase(nn.Module):
    """q0 = N(μ, L Lᵀ), L diagonal or full."""

    def __init__(self, dim: int, full: bool = False, scale: float = 0.3) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(dim))
        self.log_scale = nn.Parameter(torch.full((dim,), math.log(scale)))
        self.off_diagonal = nn.Parameter(torch.zeros(dim, dim)) if full else None

    def draw(self, num_samples: int) -> tuple[Tensor, Tensor]:
        """z0 ~ q0 [N, d] and log q0(z0) [N]."""
        noise = torch.randn(num_samples, len(self.loc))
        position = self.loc + self.log_scale.exp() * noise
        if self.off_diagonal is not None:
            position = position + noise @ self.off_diagonal.tril(-1).T
        return position, standard_log_prob(noise) - self.log_scale.sum()

    def density(self) -> Density:
        """q0, with its transport from N(0, I)."""
        if self.off_diagonal is None:
            return NormalDensity(self.loc, self.log_scale.exp())
        root = self.off_diagonal.tril(-1) + self.log_scale.exp().diag()
        base = Density(MultivariateNormal(self.loc, scale_tril=root, validate_args=False).log_prob)
        base.transport = LowerCholeskyAffine(self.loc, root)
        return base


def log_weights(base: GaussianBase, chain: Step, target: Density, num_samples: int) -> Tensor:
    """log w with E[w] = Z.  [N]"""
    position, log_q0 = base.draw(num_samples)
    return weigh(chain, Phase(position), log_q0, target.with_base(base.density())).log_weight


def fit(base: GaussianBase, chain: Step, target: Density, training: Training) -> None:
    """Climb E[log w] in the parameters of the base and of the chain together."""
    networks = {name: p for name, p in chain.named_parameters() if ".net." in name}
    others = [*base.parameters(), *(p for name, p in chain.named_parameters() if name not in networks)]
    groups: list[dict[str, Any]] = [{"params": others, "lr": training.lr}]
    if networks:
        groups.append({"params": list(networks.values()), "lr": training.network_lr})
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, training.factor)
    for _ in range(training.num_steps):
        log_weight = log_weights(base, chain, target, training.num_particles)
        loss = -log_weight[log_weight.isfinite()].sum() / training.num_particles
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], training.clip_norm)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def evaluate(base: GaussianBase, chain: Step, target: Density, num_samples: int) -> dict[str, float]:
    """The ELBO, the evidence by importance sampling, and its effective sample size, from fresh samples."""
    log_weight = torch.cat(list(_batches(base, chain, target, num_samples))).double()
    share = log_weight.softmax(0)
    ess = 1 / share.square().sum()
    return {
        "elbo": log_weight.mean().item(),
        "standard_error": (log_weight.std() / num_samples**0.5).item(),
        "log_evidence": (log_weight.logsumexp(0) - math.log(num_samples)).item(),
        "log_evidence_error": (1 / ess - 1 / num_samples).sqrt().item(),
        "ess": ess.item(),
    }


def _batches(base: GaussianBase, chain: Step, target: Density, num_samples: int) -> Iterator[Tensor]:
    for start in range(0, num_samples, BATCH):
        yield log_weights(base, chain, target, min(BATCH, num_samples - start))
