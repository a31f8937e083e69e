"""Generators: inputs by name, and what can be made of one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hmcvi.models import VAE, Generator
from hmcvi.models.inputs import LOGISTIC_SCALE, HyperbolicSecant, Logistic, Normal
from tests.support.manifolds import GENERATORS, pairs, prior_uniforms, regression, series
from tests.support.problems import F64, LinearGaussian
from tests.support.statistics import assert_independent, assert_uniform

over_generators = pytest.mark.parametrize("name", GENERATORS)


def draws(generator: Generator, count: int = 4, seed: int = 0) -> Tensor:
    return generator.sample(count, generator=torch.Generator().manual_seed(seed))


@over_generators
def test_inputs_have_their_distribution(name: str) -> None:
    generator = GENERATORS[name]
    inputs = draws(generator, 20_000)
    assert inputs.dtype == F64 and inputs.shape == (20_000, generator.dim)
    assert_uniform(uniforms := prior_uniforms(generator, inputs))
    assert_independent(uniforms)
    parts = generator.layout.unflatten(inputs)
    expected = sum(part.log_prob(parts[key]).flatten(1).sum(-1) for key, part in generator.inputs.items())
    torch.testing.assert_close(generator.density.log_prob(inputs), expected)


def test_inputs_of_any_shape() -> None:
    generator = Generator(
        {"a": Normal(), "b": HyperbolicSecant(2, 2), "c": Logistic(3)},
        lambda v: v["a"][..., None] * v["b"].flatten(-2).sum(-1, keepdim=True) + v["c"],
    )
    inputs = draws(generator).view(2, 2, -1)
    assert generator.dim == 8 and generator.num_observed == 3
    assert generator.observed(inputs).shape == (2, 2, 3)
    assert generator.density.log_prob(inputs).shape == (2, 2)
    assert generator.latent(inputs)["b"].shape == (2, 2, 2, 2)


@over_generators
def test_residuals_vanish_where_the_output_is_the_observed(name: str) -> None:
    generator = GENERATORS[name]
    inputs = draws(generator)
    observed = generator.observed(inputs)
    torch.testing.assert_close(generator.residual(inputs, observed), torch.zeros_like(observed))
    assert (generator.residual(inputs, observed + 1).abs().amax(-1) > 0.1).all()
    if not generator.is_conditional:
        torch.testing.assert_close(generator.residual(inputs, 0 * observed), observed)


def test_more_noise() -> None:
    base = series("conditional")
    noisy = base.noisy(0.3)
    inputs = draws(noisy)
    assert noisy.structure == "elementwise" and noisy.dim == base.dim + 3 and not noisy.is_conditional
    expected = base.observed(inputs[:, :5]) + 0.3 * inputs[:, 5:]
    torch.testing.assert_close(noisy.observed(inputs), expected)


def test_a_function_of_the_outputs() -> None:
    base = regression()
    both = base.then(lambda x: torch.stack([x.mean(-1), x.std(-1)], -1))
    inputs = draws(base)
    assert both.structure == "dense" and both.num_observed == 2
    torch.testing.assert_close(both.observed(inputs)[:, 1], base.observed(inputs).std(-1))


@pytest.mark.parametrize(
    "kept", [torch.tensor([True, False, True]), torch.tensor([2, 0])], ids=["mask", "index"]
)
@pytest.mark.parametrize("structure", ["dense", "elementwise"])
def test_some_of_the_outputs(structure: str, kept: Tensor) -> None:
    """The same outputs; of an elementwise generator without the inputs of the others."""
    base = regression(structure)
    part = base.observing(kept)
    inputs = draws(base)
    index = torch.arange(3)[kept]
    fewer = inputs if structure == "dense" else torch.cat([inputs[:, :2], inputs[:, 2 + index]], -1)
    assert part.structure == structure and part.num_observed == 2 and part.dim == fewer.shape[-1]
    torch.testing.assert_close(part.observed(fewer), base.observed(inputs)[:, index])
    torch.testing.assert_close(part.latent(fewer)["z"], inputs[:, :2])


def test_latent_variables_have_names() -> None:
    generator = Generator(
        {"z": Normal(2), "n": Normal(3)},
        lambda v: v["z"][..., :1] + v["n"],
        lambda v: {"scale": v["z"].exp()},
        structure="elementwise",
    )
    inputs = draws(generator)
    for same in (generator, generator.noisy(0.1), generator.then(lambda x: x[..., :1])):
        latent = same.latent(draws(same))
        assert list(latent) == ["scale"]
    part = generator.observing(torch.tensor([1]))
    torch.testing.assert_close(part.latent(inputs[:, :3])["scale"], inputs[:, :2].exp())
    assert set(series().latent(draws(series()))) == {"z", "n"}


def test_a_gaussian_decoder() -> None:
    """x = W z + b + σ n, whose density is the evidence of the model."""
    model = LinearGaussian()
    generator = Generator.from_vae(model.vae())
    inputs = draws(generator, 5)
    z, n = inputs[:, : model.latent_dim], inputs[:, model.latent_dim :]
    expected = z @ model.weight.T + model.bias + model.noise * n
    torch.testing.assert_close(generator.observed(inputs), expected)
    assert generator.structure == "elementwise" and list(generator.latent(inputs)) == ["z"]


def test_a_bernoulli_decoder_is_relaxed() -> None:
    """P(x > 0) = σ(logit), at every temperature; it has weights of its own, in double precision."""
    torch.manual_seed(0)
    vae = VAE(6, 2, hidden=(8,))
    cold, warm = Generator.from_vae(vae, 0.1), Generator.from_vae(vae, 1.0)
    inputs = draws(cold, 20_000)
    torch.testing.assert_close(cold.observed(inputs) * 0.1, warm.observed(inputs))
    fixed = torch.cat([torch.full((20_000, 2), 0.5, dtype=F64), inputs[:, 2:]], -1)
    with torch.no_grad():
        logits = vae.decoder(torch.full((2,), 0.5)).double()
        torch.testing.assert_close(
            warm.observed(fixed), logits + fixed[:, 2:] / LOGISTIC_SCALE, rtol=1e-5, atol=1e-5
        )
        for parameter in vae.decoder.parameters():
            parameter.zero_()
    assert (warm.observed(fixed) - fixed[:, 2:] / LOGISTIC_SCALE).abs().max() > 1e-3
    assert all(p.dtype == torch.float32 and p.requires_grad for p in vae.parameters())


def test_some_outputs_of_blocks() -> None:
    base = pairs()
    some, inputs = base.observing(torch.tensor([0, 3])), draws(base)
    assert (base.structure, base.block, some.structure) == ("elementwise", 2, "dense")
    assert torch.equal(some.observed(inputs), base.observed(inputs)[:, [0, 3]])


def refused(message: str):
    return pytest.raises(ValueError, match=message)


def test_bad_generators_are_refused() -> None:
    with refused("structure must be one of dense, elementwise, autoregressive, got 'banded'"):
        Generator({"n": Normal(2)}, lambda v: v["n"], structure="banded")
    with refused('conditional is for structure="autoregressive"'):
        Generator({"n": Normal(2)}, lambda v: v["n"], conditional=lambda v, x: v["n"])
    with refused("3 outputs cannot be fixed by 2 inputs"):
        Generator({"z": Normal(2)}, lambda v: torch.cat([v["z"], v["z"][..., :1]], -1))
    with refused(r"'n' must have shape \(2,\) or \(n, D\) with n D outputs in blocks of D, not \(3,\)"):
        Generator({"n": Normal(3)}, lambda v: v["n"][..., :2], structure="elementwise")
    with refused(r"'n' must have shape \(4,\), not \(2, 2\)"):
        Generator({"n": Normal(2, 2)}, lambda v: v["n"].flatten(-2), structure="autoregressive")
    with refused(r"observe must return a vector of outputs \[..., N\], got \[\]"):
        Generator({"n": Normal(3)}, lambda v: v["n"].sum(-1))
    with refused("observe must return a vector of outputs .* got float"):
        Generator({"n": Normal(3)}, lambda v: 1.0)
    with refused("float32"):
        Generator({"n": Normal(3)}, lambda v: v["n"].float())
    with refused("conditional must give back what observe makes"):
        Generator(
            {"n": Normal(2)},
            lambda v: v["n"].cumsum(-1),
            structure="autoregressive",
            conditional=lambda v, x: v["n"] + 0.5 * x,
        )


def test_bad_derivations_are_refused() -> None:
    base = regression()
    for scale in (0.0, -1.0):
        with refused("scale of the noise must be positive"):
            base.noisy(scale)
    with refused('inputs called "noise" already'):
        base.noisy(1.0).noisy(1.0)
    with refused(r"mask must have one entry for each of 3 outputs, got \[4\]"):
        base.observing(torch.ones(4, dtype=torch.bool))
    with refused(r"between 0 and 2, got \[0, 3\]"):
        base.observing(torch.tensor([0, 3]))
    with refused("at least one output, and each once"):
        base.observing(torch.tensor([1, 1]))
    with refused("at least one output, and each once"):
        base.observing(torch.zeros(3, dtype=torch.bool))
    with refused("autoregressive generator all outputs must be observed"):
        series("conditional").observing(torch.tensor([0]))
    with refused("temperature must be positive, got 0"):
        Generator.from_vae(VAE(4, 2, decoder=nn.Linear(2, 4)), 0.0)
