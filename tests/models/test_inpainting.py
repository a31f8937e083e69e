"""In-painting: the posterior given some of the pixels, and the missing ones given it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hmcvi
from hmcvi.kernels import HMC, ConstrainedHMC, Kernel
from hmcvi.models import VAE, Inpainting
from hmcvi.networks import decoder_of
from tests.support.problems import F64, LinearGaussian
from tests.support.statistics import assert_mean

MISSING = torch.tensor([True, False, False, True])
LIKELIHOODS = ("bernoulli", "gaussian")


def small_vae(likelihood: str) -> VAE:
    torch.manual_seed(0)
    return VAE(4, 2, likelihood=likelihood, hidden=(8,)).double()


def images(likelihood: str, *shape: int) -> Tensor:
    x = torch.rand(*shape, 4, dtype=F64, generator=torch.Generator().manual_seed(1))
    return x.round() if likelihood == "bernoulli" else x


def latents(*shape: int) -> Tensor:
    return torch.randn(*shape, 2, dtype=F64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_missing_pixels_are_summed_out(likelihood: str) -> None:
    """log p(x, z) = log p(x_o, z) + log p(x_m | z), so that with little missing little is left out."""
    vae, x, z = small_vae(likelihood), images(likelihood, 3), latents(5, 3)
    whole = vae.log_joint(z, x)
    parts = [Inpainting(vae, missing).posterior(x).log_prob(z) for missing in (MISSING, ~MISSING)]
    prior = -0.5 * z.square().sum(-1) - torch.tensor(2 * torch.pi, dtype=F64).log()
    torch.testing.assert_close(parts[0] + parts[1] - prior, whole)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_missing_pixels_are_not_read(likelihood: str) -> None:
    vae, x, z = small_vae(likelihood), images(likelihood, 3), latents(3)
    unknown = x.where(~MISSING, torch.nan)
    inpainting = Inpainting(vae, MISSING)
    torch.testing.assert_close(inpainting.posterior(unknown).log_prob(z), inpainting.posterior(x).log_prob(z))
    for filled in (inpainting.mean(z, unknown), inpainting.complete(z, unknown)):
        assert filled.isfinite().all() and torch.equal(filled[:, ~MISSING], x[:, ~MISSING])
    assert torch.equal(inpainting.mean(z, x)[:, MISSING], vae.decode(z)[:, MISSING])


def test_it_has_weights_of_its_own() -> None:
    vae, x, z = small_vae("gaussian").float(), images("gaussian", 3), latents(3)
    inpainting = Inpainting(vae, MISSING)
    before = inpainting.posterior(x).log_prob(z)
    with torch.no_grad():
        for parameter in vae.parameters():
            parameter.zero_()
    assert torch.equal(inpainting.posterior(x).log_prob(z), before)
    assert all(p.dtype == torch.float32 and p.requires_grad for p in vae.parameters())


def test_inputs_lie_on_the_manifold_and_have_its_density() -> None:
    """The manifold is the graph of n(z): π(u) √|I + ∂nᵀ∂n| dz = p(x_o, z) dz."""
    inpainting, x, z = Inpainting(small_vae("gaussian"), MISSING), images("gaussian", 3), latents(3)
    u = inpainting.inputs(z, x)
    kernel = ConstrainedHMC(inpainting.generator(), inpainting.observed(x), 0.1, 1)
    assert (inpainting.generator().observed(u) - x[:, ~MISSING]).abs().max() < 1e-14
    on_manifold = kernel.init(u).log_prob
    assert on_manifold is not None
    slopes = torch.stack(
        [
            torch.autograd.functional.jacobian(lambda z, x=x[i]: inpainting.inputs(z, x)[2:], z[i])
            for i in range(3)
        ]
    )
    stretch = 0.5 * torch.logdet(torch.eye(2, dtype=F64) + slopes.mT @ slopes)
    torch.testing.assert_close(on_manifold + stretch, inpainting.posterior(x).log_prob(z))


@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")  # of many chains, short ones do
@pytest.mark.parametrize("method", ["constrained", "hmc"])
def test_moments_of_a_linear_model(method: str) -> None:
    """x_m | x_o is normal; means and second moments of in-painted pixels are its, for each image."""
    model, num_chains = LinearGaussian(latent_dim=2, data_dim=4), 300
    x = model.data(2)
    inpainting, per_chain = Inpainting(model.vae(), MISSING), x.repeat_interleave(num_chains, 0)
    start = torch.randn(2 * num_chains, 2, dtype=F64, generator=torch.Generator().manual_seed(3))
    kernel: Kernel = HMC(inpainting.posterior(per_chain), 0.5, 4)
    if method == "constrained":
        kernel = ConstrainedHMC(inpainting.generator(), inpainting.observed(per_chain), 0.5, 4)
        start = inpainting.inputs(start, per_chain)
    draws = hmcvi.sample(kernel, start, num_samples=25, num_warmup=15, seed=4, progress=False)
    if method == "constrained":
        made = inpainting.generator().observed(draws.position)
        assert (made - inpainting.observed(per_chain)[:, None]).abs().max() < 1e-8
    noise = torch.Generator().manual_seed(5)
    filled = inpainting.complete(draws.position[..., :2], per_chain[:, None], noise)[..., MISSING]

    joint = model.marginal.covariance_matrix
    gain = joint[MISSING][:, ~MISSING] @ joint[~MISSING][:, ~MISSING].inverse()
    covariance = joint[MISSING][:, MISSING] - gain @ joint[~MISSING][:, MISSING]
    mean = model.bias[MISSING] + (x - model.bias)[:, ~MISSING] @ gain.T
    centred = filled.unflatten(0, (2, num_chains)) - mean[:, None, None]  # [images, chains, draws, 2]
    products = centred[..., :, None] * centred[..., None, :]
    for first, second in zip(centred.mean(2), products.mean(2), strict=True):  # chains are independent
        assert_mean(first, 0.0)
        assert_mean(second, covariance)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_missing_pixels_have_the_distribution_of_the_decoder(likelihood: str) -> None:
    vae, x, z = small_vae(likelihood), images(likelihood), latents()
    number = 20_000
    drawn = Inpainting(vae, MISSING).complete(z.expand(number, -1), x, torch.Generator().manual_seed(0))
    with torch.no_grad():
        mean = vae.decode(z)[MISSING]
        variance = mean * (1 - mean) if likelihood == "bernoulli" else vae.decoder(z)[1][MISSING] ** 2
    deviation = drawn[:, MISSING] - mean
    assert (deviation.mean(0).abs() < 4.5 * (variance / number).sqrt()).all()
    squares = deviation.square()
    assert ((squares.mean(0) - variance).abs() < 4.5 * squares.std(0) / number**0.5 + 1e-12).all()
    if likelihood == "bernoulli":
        assert set(drawn.unique().tolist()) <= {0.0, 1.0}


@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")
def test_hmc_of_a_bernoulli_model_agrees_with_quadrature() -> None:
    vae, x = small_vae("bernoulli"), images("bernoulli", 1)
    inpainting = Inpainting(vae, MISSING)
    ticks = torch.linspace(-7, 7, 201, dtype=F64)
    grid = torch.cartesian_prod(ticks, ticks)
    share = inpainting.posterior(x).log_prob(grid).softmax(0)
    with torch.no_grad():
        exact = share @ vae.decode(grid)[:, MISSING]
    start = torch.randn(500, 2, dtype=F64, generator=torch.Generator().manual_seed(3))
    draws = hmcvi.sample(
        HMC(inpainting.posterior(x), 0.5, 5), start, num_samples=20, num_warmup=15, seed=4, progress=False
    )
    assert_mean(inpainting.mean(draws.position, x)[..., MISSING].mean(1), exact)


def test_misuse_is_refused() -> None:
    vae = small_vae("bernoulli")
    for missing in (torch.ones(4), torch.ones(3, dtype=torch.bool)):
        with pytest.raises(ValueError, match="bool mask \\[4\\]"):
            Inpainting(vae, missing)
    for missing in (MISSING & ~MISSING, MISSING | ~MISSING):
        with pytest.raises(ValueError, match="some pixels must be missing"):
            Inpainting(vae, missing)
    inpainting = Inpainting(vae, MISSING)
    for refused in (inpainting.generator, lambda: inpainting.inputs(latents(1), images("bernoulli", 1))):
        with pytest.raises(ValueError, match="Use HMC on the posterior"):
            refused()


def test_any_decoder_can_be_asked_for_some_outputs() -> None:
    """One of our own, which then computes no others, and one that nothing is known of."""
    kept, z = torch.tensor([2, 1]), latents(5)
    for vae in (small_vae("bernoulli"), small_vae("gaussian"), LinearGaussian().vae()):
        whole, part = vae.decoder(z), decoder_of(vae.decoder, kept)(z)
        pairs = [(whole, part)] if isinstance(whole, Tensor) else zip(whole, part, strict=True)
        for expected, found in pairs:
            torch.testing.assert_close(found, expected[..., kept])
