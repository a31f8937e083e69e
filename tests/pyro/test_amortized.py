"""AmortizedHMC: a chain for each data point, whose weights have that point's evidence as their mean."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, RenyiELBO, Trace_ELBO
from torch import Tensor

from hmcvi.pyro import AmortizedHMC
from hmcvi.pyro.data import Call
from hmcvi.pyro.entries import StandIn
from tests.support.problems import F64, LinearGaussian, perturb
from tests.support.pyro_models import eight_schools
from tests.support.statistics import Z, assert_evidence, assert_mean, mean_and_error

LINEAR = LinearGaussian()
DATA = LINEAR.data(5)
SIZE = 50  # of the data set of which DATA is a minibatch


def model(x: Tensor) -> None:
    with pyro.plate("data", SIZE, subsample=x):
        z = pyro.sample("z", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
        mean = z @ LINEAR.weight.T + LINEAR.bias
        pyro.sample("x", dist.Normal(mean, LINEAR.noise).to_event(1), obs=x)


def local(x: Tensor) -> None:
    """The plate takes the first dimension that is free."""
    with pyro.plate("data", len(x)):
        pyro.sample("z", dist.Normal(torch.zeros((), dtype=F64), 1.0))


def encoder(x: Tensor) -> Any:
    """The right mean, too wide."""
    scale = 1.3 * LINEAR.covariance.diagonal().sqrt()
    return dist.Normal((x - LINEAR.bias) @ LINEAR.gain.T, scale).to_event(1)


def plates(x: Tensor) -> Any:
    return pyro.plate("data", SIZE, subsample=x, dim=-1)


def make(**settings: Any) -> AmortizedHMC:
    settings = {"num_hmc": 2, "num_leapfrog": 2, "hidden": (8,), **settings}
    guide = AmortizedHMC(model, encoder, context=lambda x: x, create_plates=plates, **settings)
    guide(DATA)
    perturb(guide.chain, 0.05)
    return guide


@pytest.mark.parametrize(
    "settings", [{"mass": "nn"}, {"partial": False}, {"accept": "simple", "mass": "nn"}], ids=str
)
def test_every_entry_has_its_evidence(settings: dict[str, Any]) -> None:
    count, guide = 10_000, make(**settings)
    particles = pyro.plate("particles", count, dim=-2)
    with torch.no_grad():
        guide_trace = poutine.trace(particles(guide)).get_trace(DATA)
        model_trace = poutine.trace(poutine.replay(particles(model), guide_trace)).get_trace(DATA)
    total = torch.zeros(count, 5, dtype=F64)
    for trace, sign in ((model_trace, 1), (guide_trace, -1)):
        trace.compute_log_prob()
        for site in trace.nodes.values():
            if site["type"] == "sample" and site["log_prob"].ndim:
                total = total + sign * site["log_prob"] * len(DATA) / SIZE  # unweighted by the minibatch
    assert_evidence(total, LINEAR.log_evidence(DATA))


def test_a_chain_follows_its_own_entry() -> None:
    """log p(x_n, z_n), without the weight of the minibatch, for many particles."""
    guide = make()
    torch.manual_seed(1)
    z = torch.randn(3, 5, 2, dtype=F64)
    normal = torch.distributions.Normal
    likelihood = normal(z @ LINEAR.weight.T + LINEAR.bias, LINEAR.noise).log_prob(DATA).sum(-1)
    expected = normal(0.0, 1.0).log_prob(z).sum(-1) + likelihood
    stand_in = StandIn(model, Call((DATA,), {}), guide._seen(), {"data": DATA})
    torch.testing.assert_close(guide._log_joint((DATA,), {}, {"data": DATA}, stand_in)(z), expected)


def test_a_minibatch_stands_for_the_data_set() -> None:
    guide = make()
    with torch.no_grad():
        losses = [Trace_ELBO().loss(model, guide, DATA) for _ in range(60)]
        iwae = -RenyiELBO(alpha=0.0, num_particles=2000, vectorize_particles=True).loss(model, guide, DATA)
    bound = -torch.tensor(losses) * len(DATA) / SIZE
    total = LINEAR.log_evidence(DATA).sum()
    assert bound.mean() < total
    assert bound.mean() < iwae * len(DATA) / SIZE


def test_trains_encoder_and_decoder_of_a_vae() -> None:
    """Batches of different sizes, a plate that needs no help, modules registered by the encoder."""
    network, decoder = torch.nn.Linear(4, 4), torch.nn.Linear(2, 4)

    def vae(x: Tensor) -> None:
        pyro.module("decoder", decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=decoder(z)).to_event(1), obs=x)

    def encode(x: Tensor) -> Any:
        pyro.module("encoder", network)
        loc, log_scale = network(x).chunk(2, -1)
        return dist.Normal(loc, log_scale.exp()).to_event(1)

    before = [p.detach().clone() for p in (*network.parameters(), *decoder.parameters())]
    guide = AmortizedHMC(vae, encode, 1, 2, accept="simple", hidden=(8,))
    svi = SVI(vae, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    for size in (6, 6, 3):
        svi.step(torch.bernoulli(torch.full((size, 4), 0.5)))
    after = [*network.parameters(), *decoder.parameters()]
    assert all((new != old).any() for new, old in zip(after, before, strict=True))
    assert guide(torch.zeros(2, 4))["z"].shape == (2, 2)


def test_the_model_may_draw_the_subsample() -> None:
    data = torch.linspace(-1, 1, 12, dtype=F64)

    def drawn() -> None:
        with pyro.plate("data", 12, subsample_size=4):
            z = pyro.sample("z", dist.Normal(torch.zeros((), dtype=F64), 1.0))
            pyro.sample("x", dist.Normal(z, 0.5), obs=pyro.subsample(data, event_dim=0))

    def encode() -> Any:
        x = pyro.subsample(data, event_dim=0)
        return dist.Normal(0.8 * x[:, None], 0.45).to_event(1)

    guide = AmortizedHMC(drawn, encode, 1, 2, hidden=(4,))
    with torch.no_grad():
        losses = torch.tensor([Trace_ELBO().loss(drawn, guide) for _ in range(150)], dtype=F64)
    evidence = dist.Normal(0.0, 1.25**0.5).log_prob(data).sum()
    bound, error = mean_and_error(-losses)
    assert evidence - 6 < bound < evidence + Z * error  # the base is the posterior, but for its scale


def test_describes_the_refined_laws() -> None:
    """Without steps they are the encoder's."""
    guide = AmortizedHMC(model, encoder, num_hmc=0, create_plates=plates)
    guide(DATA)
    distribution = encoder(DATA)
    draws = guide.sample_posterior(4000, DATA)["z"]
    assert draws.shape == (4000, 5, 2)
    assert_mean(draws, distribution.mean)
    quantiles = guide.quantiles([0.16, 0.5, 0.84], DATA)["z"]
    expected = torch.stack([distribution.mean + shift * distribution.stddev for shift in (-1, 0, 1)])
    assert ((quantiles - expected) / distribution.stddev).abs().max() < 0.2
    assert guide.median(DATA)["z"].shape == (5, 2)
    assert make().sample_posterior(3, DATA)["z"].shape == (3, 5, 2)


def test_says_what_is_wrong() -> None:
    with pytest.raises(RuntimeError, match="AmortizedHMC has not seen its model"):
        AmortizedHMC(model, encoder).median(DATA)
    with pytest.raises(ValueError, match="plate 'data' has 5 entries, the encoder gives 3 distributions"):
        AmortizedHMC(model, lambda x: encoder(x[:3]), create_plates=plates)(DATA)
    shallow = Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=0)
    with pytest.raises(ValueError, match="collide with the plates"):
        shallow.loss(local, AmortizedHMC(local, lambda x: dist.Normal(x[:, :1], 1.0).to_event(1)), DATA)
    with pytest.raises(ValueError, match=r"all latents in one plate.*outside are 'mu', 'tau': use AutoHMC"):
        AmortizedHMC(eight_schools, encoder)()
    with pytest.raises(ValueError, match="fill 2 dimensions, the encoder gives"):
        AmortizedHMC(model, lambda x: dist.Normal(x, 1.0).to_event(1), create_plates=plates)(DATA)
    with pytest.raises(ValueError, match="context_dim must be at least 1"):
        AmortizedHMC(model, encoder, mass="nn", create_plates=plates)(DATA)
