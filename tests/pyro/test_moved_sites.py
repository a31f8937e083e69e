"""Kernels that move more than the latents of a model, or fewer: tempering and pseudo-marginal ones."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro.infer import MCMC

from hmcvi.density import Density
from hmcvi.evidence import Continuous, Grid, TemperedDensity, Tempering, tempered_evidence
from hmcvi.kernels import (
    HMC,
    AuxiliaryPseudoMarginal,
    Estimator,
    PseudoMarginalHMC,
    apm_mi_mh,
    apm_ss_mh,
    pm_mh,
)
from hmcvi.pyro import KernelAdapter, PyroDensity, density_from_pyro, integrate_out, vectorized_mcmc
from tests.support.problems import F64
from tests.support.pyro_models import PoissonEffects, beta_bernoulli, conjugate_gaussian, number
from tests.support.statistics import Z, assert_evidence, assert_mean

DATA = torch.tensor([1.5, 0.2, 1.1], dtype=F64)
LOG_EVIDENCE = float(
    torch.distributions.MultivariateNormal(torch.zeros(3, dtype=F64), torch.eye(3, dtype=F64) + 4.0).log_prob(
        DATA
    )
)
POISSON = PoissonEffects()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    pyro.set_rng_seed(0)


def tempered(density: Density) -> Tempering:
    return Tempering(HMC(density, 0.7, 2), Continuous(), LOG_EVIDENCE)


def on_a_grid(density: Density) -> Tempering:
    return Tempering(HMC(density, 0.7, 2), Grid(torch.linspace(0, 1, 5)), LOG_EVIDENCE)


def without_effects(density: PyroDensity) -> AuxiliaryPseudoMarginal:
    return apm_mi_mh(integrate_out(density, ["z"], num_importance=4), 1.0)


@pytest.mark.parametrize("factory", [tempered, on_a_grid])
def test_tempering_in_mcmc(factory: object) -> None:
    mcmc = MCMC(KernelAdapter(conjugate_gaussian, factory), 40, warmup_steps=5, disable_progbar=True)
    mcmc.run(DATA)
    samples = mcmc.get_samples()
    assert set(samples) == {"z", "inverse_temperature"}
    beta = samples["inverse_temperature"]
    assert ((beta >= 0) & (beta <= 1)).all() and len(beta.unique()) > 3
    assert 0 < mcmc.diagnostics()["acceptance rate"]["chain 0"] <= 1


@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")
def test_tempered_chains_know_the_evidence() -> None:
    """With ζ = Z both ends are as likely, and draws weighted by p(1 | z) are those of the posterior."""
    samples = vectorized_mcmc(
        conjugate_gaussian, tempered, DATA, num_samples=60, warmup_steps=20, group_by_chain=True
    )
    z = samples["z"].T[..., None]  # [draws, chains, 1]
    delta = TemperedDensity(density_from_pyro(conjugate_gaussian, DATA), LOG_EVIDENCE).delta(z)
    result = tempered_evidence(z, delta, LOG_EVIDENCE)
    assert result.std_error < 0.1 and (result.log_z - LOG_EVIDENCE).abs() < Z * result.std_error
    posterior_mean = DATA.sum() / 3.25
    weight = result.log_weight.exp().unflatten(0, (60, 100))
    assert_mean((weight * (z[..., 0] - posterior_mean)).mean(0), 0.0)


def test_names_of_sites_and_supports_are_kept() -> None:
    coins = torch.ones(4, 3, dtype=F64)
    kernel = KernelAdapter(beta_bernoulli, tempered)
    mcmc = MCMC(kernel, 10, warmup_steps=0, disable_progbar=True)
    mcmc.run(coins)
    p = mcmc.get_samples()["p"]
    assert p.shape == (10, 3) and ((p > 0) & (p < 1)).all()


def test_sites_are_integrated_out_without_bias() -> None:
    estimator = integrate_out(density_from_pyro(POISSON), ["z"], num_importance=2)
    mu = torch.tensor([-0.5, 1.5], dtype=F64)
    position = mu[:, None].expand(2, 1)
    prepared = estimator.prepare(position)
    auxiliary = torch.randn(5000, 2, estimator.auxiliary_dim, dtype=F64)
    repeated = type(prepared)(*(part.expand(5000, *part.shape) for part in prepared))
    log_estimate = estimator.log_estimate(position.expand(5000, 2, 1), auxiliary, repeated)
    assert_evidence(log_estimate, POISSON.log_marginal(mu))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")
def test_the_sites_left_have_their_marginal_posterior() -> None:
    samples = vectorized_mcmc(
        POISSON, without_effects, num_chains=200, num_samples=12, warmup_steps=8, group_by_chain=True
    )
    assert set(samples) == {"mu"}
    assert_mean(samples["mu"].mean(1), POISSON.posterior_mean())


@pytest.mark.parametrize(
    "factory",
    [
        without_effects,
        lambda density: apm_ss_mh(integrate_out(density, ["z"]), 1.0),
        lambda density: pm_mh(integrate_out(density, ["z"]), 1.0),
        lambda density: PseudoMarginalHMC(integrate_out(density, ["z"]), 0.4, 1),
    ],
    ids=["apm_mi_mh", "apm_ss_mh", "pm_mh", "PseudoMarginalHMC"],
)
def test_pseudo_marginal_kernels_in_mcmc(factory: object) -> None:
    mcmc = MCMC(KernelAdapter(POISSON, factory), 8, warmup_steps=2, disable_progbar=True)
    mcmc.run()
    mu = mcmc.get_samples()["mu"]
    assert mu.shape == (8,) and len(mu.unique()) > 1
    assert 0 < mcmc.diagnostics()["acceptance rate"]["chain 0"] <= 1


def test_an_estimator_of_your_own() -> None:
    """Over the sites of the model, with noise e^{u − 1/2} of mean one."""

    def noisy(density: PyroDensity) -> AuxiliaryPseudoMarginal:
        def log_estimate(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
            return density.log_prob(x) + (u - 0.5).sum(-1)

        return apm_mi_mh(Estimator(log_estimate, auxiliary_dim=1), 1.0)

    mcmc = MCMC(KernelAdapter(conjugate_gaussian, noisy), 20, warmup_steps=10, disable_progbar=True)
    mcmc.run(DATA)
    assert mcmc.get_samples()["z"].shape == (20,)


def test_says_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"lambda density: apm_mi_mh\(integrate_out\(density, "):
        KernelAdapter(POISSON, apm_mi_mh, step_size=0.5).setup(0)
    with pytest.raises(ValueError, match=r"lambda density: Tempering\(HMC\(density, 0.1\), Continuous"):
        KernelAdapter(POISSON, Tempering).setup(0)
    kernel = KernelAdapter(None, tempered, potential_fn=lambda params: params["z"].square())
    kernel.initial_params = {"z": number(0.0)}
    with pytest.raises(ValueError, match="tempering needs a base"):
        kernel.setup(0)
    density = density_from_pyro(POISSON)
    named = Density(lambda v: -v["inverse_temperature"], shapes={"inverse_temperature": ()}, base=density)
    with pytest.raises(ValueError, match="inverse_temperature is the name of β"):
        TemperedDensity(named)
    with pytest.raises(ValueError, match="no latent site 'w' to integrate out"):
        integrate_out(density, ["w"])
    with pytest.raises(ValueError, match="integrate out some of the latents"):
        integrate_out(density, ["mu", "z"])
    elsewhere = Estimator(lambda x, u: -x["q"].square() + 0 * u.sum(-1), 1, shapes={"q": ()})
    with pytest.raises(ValueError, match=r"the kernel moves \['q'\], the latents are \['mu', 'z'\]"):
        KernelAdapter(POISSON, lambda density: pm_mh(elsewhere, 1.0)).setup(0)
