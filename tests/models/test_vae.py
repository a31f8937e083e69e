"""The VAE: its joint density, its estimates against exact values, its shapes and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributions import Bernoulli, Normal

from hmcvi import Chain
from hmcvi.kernels import annealed_chain, hamiltonian_chain, langevin_chain
from hmcvi.models import VAE
from tests.support.problems import F64, LinearGaussian, perturb
from tests.support.statistics import Z, assert_mean

MODEL = LinearGaussian()


def chain(**options: object):
    return perturb(hamiltonian_chain(2, 4, 2, 2, hidden=(8,), **options))


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_joint_density_is_likelihood_times_prior(likelihood: str) -> None:
    torch.manual_seed(0)
    vae = VAE(4, 2, likelihood=likelihood, hidden=(8,)).double()
    z, x = torch.randn(3, 5, 2, dtype=F64), torch.rand(5, 4, dtype=F64).round()
    output = vae.decoder(z)
    distribution = Bernoulli(logits=output) if likelihood == "bernoulli" else Normal(*output)
    expected = distribution.log_prob(x).sum(-1) + Normal(0.0, 1.0).log_prob(z).sum(-1)
    torch.testing.assert_close(vae.log_joint(z, x), expected)
    torch.testing.assert_close(vae.decode(z), distribution.mean)


def test_posterior_knows_its_evidence_and_base() -> None:
    """γ(z) = p(x, z) = p(x) p(z|x), and q0 from the encoder."""
    vae, x, z = MODEL.vae(), MODEL.data(5), torch.randn(5, 2, dtype=F64)
    posterior = torch.distributions.MultivariateNormal((x - MODEL.bias) @ MODEL.gain.T, MODEL.covariance)
    density = vae.posterior(x)
    torch.testing.assert_close(density.log_prob(z), MODEL.log_evidence(x) + posterior.log_prob(z))
    torch.testing.assert_close(density.base.log_prob(z), Normal(*vae.encoder(x)).log_prob(z).sum(-1))


@pytest.mark.parametrize("refined", [False, True])
def test_importance_estimate_is_exact_within_its_error(refined: bool) -> None:
    torch.manual_seed(0)
    vae, x = MODEL.vae(chain() if refined else None, width=1.5), MODEL.data(20)
    estimate = vae.importance_nll(x, num_samples=5000)
    deviation = (estimate.nll + MODEL.log_evidence(x)).abs() / estimate.std_error
    assert (deviation <= Z).all(), deviation
    assert (estimate.ess > 500).all()


def test_importance_error_is_calibrated() -> None:
    """Standardised errors of many estimates have mean zero and variance one."""
    torch.manual_seed(0)
    vae, x = MODEL.vae(width=1.5), MODEL.data(1).expand(4000, 4)
    estimate = vae.importance_nll(x, num_samples=1000)
    score = (estimate.nll + MODEL.log_evidence(x)) / estimate.std_error
    # −log of an average is biased upwards by half its relative variance
    assert_mean(score - 0.5 * estimate.std_error, 0.0)
    assert 0.9 < score.var() < 1.1


def test_effective_sample_size_lies_between_one_and_all() -> None:
    torch.manual_seed(0)
    x = MODEL.data(10)
    for width in (0.1, 1.0, 20.0):
        estimate = MODEL.vae(width=width).importance_nll(x, num_samples=200)
        assert (estimate.ess >= 1).all() and (estimate.ess <= 200 + 1e-9).all()
        assert (estimate.std_error >= 0).all()
    torch.testing.assert_close(estimate.ess, 1 / (estimate.std_error**2 + 1 / 200))


def test_all_samples_count_where_the_proposal_is_the_posterior() -> None:
    """One latent dimension, encoder exact and centred on it: every weight is p(x)."""
    model = LinearGaussian(latent_dim=1, data_dim=3)
    vae, x = model.vae(width=1.0), model.data(4)
    vae.refine = lambda x, num_samples=1: vae.encoder(x)[0].expand(num_samples, -1, -1)
    estimate = vae.importance_nll(x, num_samples=100)
    torch.testing.assert_close(estimate.nll, -model.log_evidence(x))
    torch.testing.assert_close(estimate.ess, torch.full((4,), 100.0, dtype=F64))


@pytest.mark.parametrize("num_samples", [1, 7, 100])
@pytest.mark.parametrize("chunk", [1, 30, 1000])
def test_chunks_do_not_change_the_estimate(num_samples: int, chunk: int) -> None:
    estimate = MODEL.vae(width=1.0).importance_nll(MODEL.data(3), num_samples, chunk=chunk)
    assert estimate.nll.shape == (3,) and (estimate.ess <= num_samples + 1e-9).all()


def test_refinement_brings_samples_nearer_to_the_posterior() -> None:
    """A wide start, moved by the dynamics of the target with acceptance, ends narrower."""
    torch.manual_seed(0)
    refined = hamiltonian_chain(2, 4, 10, 3, accept="simple", hidden=(8,), initial_step_size=0.15).double()
    vae, x = MODEL.vae(refined, width=3.0), MODEL.data(1)
    with torch.no_grad():
        z = vae.refine(x, 20_000)[:, 0]
    mean = ((x - MODEL.bias) @ MODEL.gain.T)[0]
    assert_mean(z, mean)
    assert_mean((z - mean).square(), MODEL.covariance.diagonal())


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("refined", [False, True])
def test_shapes(batch: tuple[int, ...], refined: bool) -> None:
    torch.manual_seed(0)
    vae = MODEL.vae(chain(mass="nn", accept="nn", partial=True) if refined else None)
    x = MODEL.data(*batch)
    assert vae.bound(x).shape == batch and vae.bound(x, 5).shape == batch
    assert vae.log_weights(x, 5).shape == (5, *batch)
    assert vae.refine(x, 5).shape == (5, *batch, 2)
    assert vae.reconstruct(x).shape == (*batch, 4)
    for part in vae.importance_nll(x, num_samples=10):
        assert part.shape == batch
    run = vae.run(x, 5)
    assert run.log_base.shape == (5, *batch)
    for report in run.transition.info.values():
        assert report.shape[1:] == (5, *batch)


def test_generated_means_come_from_the_prior() -> None:
    vae = MODEL.vae()
    generated = vae.generate(20_000, torch.Generator().manual_seed(0))
    assert generated.shape == (20_000, 4) and not generated.requires_grad
    assert_mean(generated, MODEL.bias)
    assert torch.equal(generated, vae.generate(20_000, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_default_networks_in_single_precision(likelihood: str) -> None:
    torch.manual_seed(0)
    vae = VAE(6, 2, hamiltonian_chain(2, 6, 1, 1, hidden=(8,)), likelihood, hidden=(8,))
    bound = vae.bound(torch.rand(5, 6), 3)
    bound.sum().backward()
    assert bound.dtype == torch.float32 and bound.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in vae.encoder.parameters())
    assert ((vae.reconstruct(torch.rand(5, 6)) >= 0) & (vae.reconstruct(torch.rand(5, 6)) <= 1)).all()


@pytest.mark.parametrize(("size", "kind"), [(-3, ValueError), (0, ValueError), (20.5, TypeError)])
def test_layers_without_units_are_refused(size: float, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"hidden must be .* got {size}"):
        VAE(6, 2, hidden=(size,))  # type: ignore[arg-type]


@pytest.mark.parametrize("builder", [hamiltonian_chain, annealed_chain, langevin_chain])
def test_chains_need_their_sizes_alone(builder: Callable[[int, int], Chain]) -> None:
    assert VAE(6, 2, builder(2, 6), hidden=(8,)).bound(torch.ones(5, 6)).isfinite().all()


def test_default_objective() -> None:
    """One sample: the ELBO.  More: IWAE."""
    vae, x = MODEL.vae(chain()), MODEL.data(3)
    for num_samples in (1, 4):
        torch.manual_seed(1)
        bound = vae.bound(x, num_samples)
        torch.manual_seed(1)
        torch.testing.assert_close(bound, vae.log_weights(x, num_samples).exp().mean(0).log())


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="got 4 and 0"):
        VAE(4, 0)
    with pytest.raises(ValueError, match="got 0 and 2"):
        VAE(0, 2)
    with pytest.raises(ValueError, match="got 'poisson'"):
        VAE(4, 2, likelihood="poisson")
    vae, x = MODEL.vae(), MODEL.data(3)
    with pytest.raises(ValueError, match=r"got \[3, 5\]"):
        vae.bound(torch.zeros(3, 5, dtype=F64))
    for call in (vae.bound, vae.log_weights, vae.refine, vae.importance_nll):
        with pytest.raises(ValueError, match="got 0"):
            call(x, 0)


@pytest.mark.parametrize("pixel", [-0.1, 1.5, 255.0])
def test_pixels_outside_the_unit_interval_are_refused(pixel: float) -> None:
    x = torch.full((2, 4), 0.5)
    x[1, 2] = pixel
    with pytest.raises(ValueError, match=rf"\[0, 1\], got .*{pixel:g}"):
        VAE(4, 2, hidden=(8,)).bound(x)
    assert VAE(4, 2, likelihood="gaussian", hidden=(8,)).bound(x).isfinite().all()
