"""Problems with known evidence, repeated as data items, and every estimator with small settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from hmcvi import Density
from hmcvi.evidence import (
    Evidence,
    ais,
    bidirectional,
    gibbs_tempering,
    importance,
    reverse_ais,
    simulated_tempering,
    smc,
    tempered_hmc,
    thermodynamic_integration,
)
from hmcvi.kernels import HMC
from tests.support.problems import F64, LinearGaussian, Mixture

CHAINS = 32


class Case(NamedTuple):
    base: Distribution
    target: Density
    log_z: Tensor  # [items]
    exact: Tensor  # draws of the target  [chains, items, d]


def normal_distribution(dim: int) -> Independent:
    return Independent(
        Normal(torch.linspace(-0.3, 0.3, dim, dtype=F64), torch.linspace(0.9, 1.05, dim, dtype=F64)), 1
    )


def normal_case(dim: int, items: int, seed: int = 0) -> Case:
    """N(0, 1.2² I) → Z · N(m, diag(s²)), the base the wider in every direction."""
    loc, scale = normal_distribution(dim).mean, normal_distribution(dim).stddev
    base = Independent(Normal(torch.zeros(items, dim, dtype=F64), 1.2), 1)
    target = Density(lambda z: 0.7 - 0.5 * ((z - loc) / scale).square().sum(-1))
    log_z = 0.7 + 0.5 * dim * math.log(2 * math.pi) + scale.log().sum()
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(CHAINS, items, dim, dtype=F64, generator=generator)
    return Case(base, target, log_z.expand(items), loc + scale * noise)


def mixture_case(items: int) -> Case:
    torch.manual_seed(0)
    mixture = Mixture()
    base = Independent(Normal(torch.zeros(items, 2, dtype=F64), mixture.base_scale), 1)
    exact = mixture.draw(CHAINS * items).view(CHAINS, items, 2)
    return Case(base, mixture.density, torch.full((items,), mixture.log_evidence, dtype=F64), exact)


def vae_case(items: int) -> Case:
    """A linear VAE, one image per item; the base is its encoder."""
    model = LinearGaussian()
    vae, x = model.vae(width=1.3), model.data(items)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(CHAINS, items, model.latent_dim, dtype=F64, generator=generator)
    root = torch.linalg.cholesky(model.covariance)
    exact = (x - model.bias) @ model.gain.T + noise @ root.T
    return Case(vae.encode(x), vae.posterior(x), model.log_evidence(x), exact)


def quiet(estimator: Callable[..., Evidence], **settings: object) -> Callable[[Case], Evidence]:
    def run(case: Case, **other: object) -> Evidence:
        return estimator(case.base, case.target, progress=False, **{**settings, **other})

    return run


def from_exact(estimator: Callable[..., Evidence], **settings: object) -> Callable[[Case], Evidence]:
    def run(case: Case, **other: object) -> Evidence:
        options = {**settings, **other}
        return estimator(case.base, case.target, case.exact, progress=False, **options)

    return run


def plain(case: Case, **other: object) -> Evidence:
    return importance(case.base, case.target, **{"num_samples": 1000, **other})


def short(density: Density) -> HMC:
    return HMC(density, 0.5, 2, jitter=0.5)


ESTIMATORS: dict[str, Callable[..., Evidence]] = {
    "importance": plain,
    "ais": quiet(ais, num_temperatures=40, num_chains=CHAINS),
    "adaptive ais": quiet(ais, num_temperatures=40, num_chains=CHAINS, schedule="adaptive"),
    "reverse ais": from_exact(reverse_ais, num_temperatures=40, num_chains=CHAINS),
    "bidirectional": from_exact(bidirectional, num_temperatures=30, num_chains=CHAINS),
    "smc": quiet(smc, num_particles=256),
    "smc without waste-free moves": quiet(smc, num_particles=128, num_moves=1, waste_free=False),
    "thermodynamic": quiet(
        thermodynamic_integration,
        num_temperatures=8,
        num_chains=2,
        num_samples=120,
        num_warmup=30,
        kernel=short,
    ),
    "gibbs tempering": quiet(gibbs_tempering, num_samples=150, num_chains=8, num_warmup=30, kernel=short),
    "simulated tempering": quiet(
        simulated_tempering, num_samples=150, num_chains=8, num_warmup=30, num_temperatures=30, kernel=short
    ),
    "simulated tempering with learned weights, counting": quiet(
        simulated_tempering,
        num_samples=150,
        num_chains=8,
        num_warmup=100,
        num_temperatures=8,
        kernel=short,
        weights="adapted",
        estimate="counts",
    ),
    "tempered hmc": quiet(tempered_hmc, num_samples=150, num_chains=8, num_warmup=60, num_steps=5),
}
