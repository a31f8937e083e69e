"""AutoSemiHMC: a base for global latents, a chain for the local ones of each entry, with minibatches."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from torch import Tensor

from hmcvi.pyro import AutoHMC, AutoSemiHMC
from tests.support.problems import F64, perturb
from tests.support.pyro_models import PoissonEffects, log_weights, number
from tests.support.statistics import assert_evidence, assert_mean, mean_and_error

POISSON = PoissonEffects()
NOISE = 0.5
DATA = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=F64)


def linear(size: int | None = None) -> None:
    """mu ~ N(0, 2²), z_n ~ N(mu, 1), x_n ~ N(z_n, NOISE²), of which `size` are seen."""
    mu = pyro.sample("mu", dist.Normal(number(0.0), 2.0))
    with pyro.plate("data", 4, subsample_size=size) as index:
        z = pyro.sample("z", dist.Normal(mu, 1.0))
        pyro.sample("x", dist.Normal(z, NOISE), obs=DATA[index])


def log_evidence_of_linear() -> Tensor:
    covariance = (1 + NOISE**2) * torch.eye(4, dtype=F64) + 4.0
    return dist.MultivariateNormal(torch.zeros(4, dtype=F64), covariance).log_prob(DATA)


def selected(indices: Tensor, x: Tensor | None = DATA) -> None:
    """The same with entries that are given, and positive local latents."""
    mu = pyro.sample("mu", dist.Normal(number(0.0), 2.0))
    with pyro.plate("data", 4, subsample=indices) as index:
        z = pyro.sample("z", dist.LogNormal(mu, 1.0))
        pyro.sample("x", dist.Normal(z, NOISE), obs=None if x is None else x[index])


def make(model: Any = POISSON, *args: Any, **settings: Any) -> AutoSemiHMC:
    """A guide whose chain and bases are not at their best."""
    guide = AutoSemiHMC(model, **{"num_hmc": 2, "num_particles": 3, **settings})
    guide(*args)
    perturb(guide.chain, 0.05)
    with torch.no_grad():
        if guide.base is not None:
            guide.base.log_scale.fill_(0.3)
        if guide.local is not None:
            guide.local.log_scale.fill_(0.3)
            guide.local.loc.fill_(0.1)
    return guide


def log_evidence_of_poisson() -> float:
    mu = torch.linspace(-8, 8, 2001, dtype=F64)
    return float(torch.trapezoid(POISSON.log_marginal(mu).exp(), mu).log())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_particles": 1},
        pytest.param({"num_hmc": 0}, marks=pytest.mark.slow),
        pytest.param({"accept": "simple", "chain": "annealed"}, marks=pytest.mark.slow),
        pytest.param({"chain": "hamiltonian", "num_leapfrog": 2}, marks=pytest.mark.slow),
        pytest.param({"base": "diagonal"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_weights_have_the_evidence_as_their_mean(settings: dict[str, Any]) -> None:
    assert_evidence(log_weights(POISSON, make(**settings), 10_000, 1), log_evidence_of_poisson())


def test_it_is_exact_where_everything_is_normal() -> None:
    """Before training, without a chain: local means depend on the global latent."""
    guide = AutoSemiHMC(linear, num_hmc=0, num_particles=1)
    guide()
    weights = log_weights(linear, guide, 500, 1)
    assert float((weights - log_evidence_of_linear()).abs().mean()) < 0.03


def bounds(guide: AutoSemiHMC, indices: list[int], count: int) -> Tensor:
    """The estimate of the bound by a minibatch.  [count]"""
    held = poutine.condition(linear, {"data": torch.tensor(indices)})
    inside = poutine.condition(guide, {"data": torch.tensor(indices)})
    return log_weights(held, inside, count, 1, len(indices))


@pytest.mark.slow
def test_a_minibatch_estimates_the_bound_of_all_data_without_bias() -> None:
    guide = make(linear)
    whole = bounds(guide, [0, 1, 2, 3], 4000)
    for size in (1, 2):
        parts = [bounds(guide, list(part), 4000) for part in itertools.combinations(range(4), size)]
        assert_mean(torch.stack(parts).mean(0) - whole, 0.0)


@pytest.mark.slow
def test_gradients_are_those_of_the_bound() -> None:
    """Of both bases and the step size, against differences with the same random numbers."""
    guide = make(linear, 2)

    def loss() -> Tensor:
        torch.manual_seed(1)
        value: Tensor = Trace_ELBO().differentiable_loss(linear, guide, 2)
        return value

    loss().backward()
    for name, parameter in guide.named_parameters():
        if parameter.grad is None:
            assert name.split(".")[-1] in ("centre", "root", "unit")
            continue
        place = int(parameter.grad.abs().argmax())
        with torch.no_grad():
            ends = []
            for shift in (1e-5, -2e-5):
                parameter.view(-1)[place] += shift
                ends.append(float(loss()))
            parameter.view(-1)[place] += 1e-5
        assert float(parameter.grad.view(-1)[place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4)


def test_without_a_chain_it_is_its_base() -> None:
    guide = make(linear, num_hmc=0, num_particles=1)
    trace = poutine.trace(guide).get_trace()
    trace.compute_log_prob()
    noise = trace.nodes["_AutoSemiHMC_global_noise"]["value"]
    assert guide.local is not None
    loc, scale = guide.local(torch.arange(4), noise)
    local = dist.Normal(loc[:, 0], scale[:, 0]).log_prob(trace.nodes["z"]["value"]).sum()
    outer = guide.base.get_posterior().log_prob(trace.nodes["mu"]["value"].reshape(1))
    torch.testing.assert_close(trace.log_prob_sum(), outer + local)


def test_one_entry_without_global_latents_is_as_with_autohmc() -> None:
    """The same coordinates, chain and random numbers: the same weights."""

    def model() -> None:
        with pyro.plate("data", 1):
            z = pyro.sample("z", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(z.prod(-1), 0.5), obs=number(1.0))

    semi = make(model)
    auto = AutoHMC(model, num_hmc=2, num_particles=3, base="diagonal")
    auto()
    auto.chain.load_state_dict(semi.chain.state_dict())
    assert semi.local is not None
    with torch.no_grad():
        auto.base.centre.copy_(semi.local.centre[0])
        auto.base.root.copy_(semi.local.unit[0])
        auto.base.loc.copy_(semi.local.loc[0] * 2**0.5)
        auto.base.log_scale.copy_(semi.local.log_scale[0] * 2**0.5)
    losses = []
    for guide in (semi, auto):
        torch.manual_seed(0)
        losses.append(Trace_ELBO().loss(model, guide))
    assert losses[0] == pytest.approx(losses[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss", [Trace_ELBO(), Trace_ELBO(3, vectorize_particles=True), TraceMeanField_ELBO()]
)
def test_training_by_minibatches_closes_in_on_the_evidence(loss: Any) -> None:
    guide = AutoSemiHMC(linear, num_hmc=2)
    svi = SVI(linear, guide, pyro.optim.Adam({"lr": 0.01}), loss)
    for _ in range(20):
        svi.step(2)
    bound, error = mean_and_error(log_weights(linear, guide, 500, 1))
    assert log_evidence_of_linear() - 0.5 < bound < log_evidence_of_linear() + 4 * error


def test_entries_may_be_given_and_plates_stand_anywhere() -> None:
    """Positive latents, an inner plate of data, the plate at another dimension, a vectorised particle."""

    def model(indices: Tensor) -> None:
        with pyro.plate("features", 2):
            w = pyro.sample("w", dist.Normal(number(0.0), 1.0))
        with pyro.plate("groups", 5, subsample=indices, dim=-2):
            rate = pyro.sample("rate", dist.Gamma(number(2.0), 1.0))
            with pyro.plate("repeats", 3, dim=-1):
                pyro.sample(
                    "x", dist.Normal(rate + w.sum(-1, keepdim=True), 1.0), obs=torch.ones(len(indices), 3)
                )

    guide = AutoSemiHMC(model, num_hmc=1, num_particles=2, plate="groups")
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO(2, vectorize_particles=True))
    for indices in ([0, 3], [1, 2, 4]):
        svi.step(torch.tensor(indices))
    draws = guide.sample_posterior(6, torch.tensor([4, 0, 1]))
    assert draws["rate"].shape == (6, 3, 1) and draws["w"].shape == (6, 2) and (draws["rate"] > 0).all()


def test_an_encoder_in_place_of_parameters() -> None:
    network = torch.nn.Linear(1, 2).double()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[0.8], [0.0]]))
        network.bias.copy_(torch.tensor([0.2, -0.5]))

    def encode(size: int | None = None) -> Any:
        pyro.module("encoder", network)
        loc, log_scale = network(pyro.subsample(DATA, event_dim=0)[:, None]).chunk(2, -1)
        return dist.Normal(loc, log_scale.exp()).to_event(1)

    before = network.weight.detach().clone()
    guide = AutoSemiHMC(linear, num_hmc=1, num_particles=2, encoder=encode)
    SVI(linear, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(2)
    assert guide.local is None and (network.weight != before).any()
    assert guide.sample_posterior(3, 3)["z"].shape == (3, 4)  # batches of three cover four entries
    assert_evidence(log_weights(linear, guide, 10_000, 1), log_evidence_of_linear())


@pytest.mark.slow
def test_draws_are_those_of_the_posterior() -> None:
    """Of all entries, by minibatches, with the same global latents."""
    guide = AutoSemiHMC(linear)
    guide()
    draws = guide.sample_posterior(4000, 3)
    mean = DATA.sum() / (1 + NOISE**2) / (1 / 4 + 4 / (1 + NOISE**2))
    assert_mean(draws["mu"], mean)
    rest = draws["z"] - (draws["mu"][:, None] + DATA / NOISE**2) / (1 + 1 / NOISE**2)  # given mu: N(0, 1/5)
    assert_mean(torch.cat([rest, rest * (draws["mu"] - mean)[:, None], 5 * rest.square() - 1], -1), 0.0)


def test_predictive_has_the_data_or_refuses() -> None:
    indices = torch.arange(4)
    guide = AutoSemiHMC(selected, num_hmc=1)
    guide(indices)
    assert Predictive(selected, guide=guide, num_samples=5)(indices)["x"].shape == (5, 4)
    with pytest.raises(ValueError, match=r"'x' is not observed in this call.*sample_globals"):
        Predictive(selected, guide=guide, num_samples=5)(indices, None)
    new = Predictive(selected, guide.sample_globals(5))(indices, None)  # entries that were never seen
    assert new["x"].shape == (5, 4) and new["z"].shape == (5, 4)
    drawn = AutoSemiHMC(linear, num_hmc=1)
    drawn(2)
    with pytest.raises(RuntimeError, match="draws a subsample of 'data', another one than its guide"):
        Predictive(linear, guide=drawn, num_samples=5)(2)


@pytest.mark.slow
def test_copies_draw_alike() -> None:
    guide = make(linear, 2)
    copies = [copy.deepcopy(guide), pickle.loads(pickle.dumps(guide))]
    again = AutoSemiHMC(linear, num_hmc=2, num_particles=3)
    with pyro.get_param_store().scope():
        pyro.clear_param_store()
        again(2)
        again.load_state_dict(guide.state_dict())
        expected = guide.median(2)
        for other in (*copies, again):
            torch.testing.assert_close(other.median(2), expected)


@pytest.mark.slow
def test_the_param_store_restores_all_of_it(tmp_path: Any) -> None:
    guide = make(linear, 2)
    SVI(linear, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(2)
    expected = guide.median(2)
    pyro.get_param_store().save(tmp_path / "params")
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "params", map_location="cpu")
    other = AutoSemiHMC(linear, num_hmc=2, num_particles=3)
    other(2)
    torch.testing.assert_close(other.median(2), expected)


def test_entries_are_fitted_when_they_are_first_seen() -> None:
    guide = AutoSemiHMC(selected, num_hmc=1)
    guide(torch.tensor([0, 1]))
    assert guide.local is not None and guide.local.seen.tolist() == [True, True, False, False]
    with torch.no_grad():
        guide(torch.tensor([2, 3]))
    assert not guide.local.seen[2]
    guide(torch.tensor([2, 3]))
    assert guide.local.seen.all() and (guide.local.unit[2] != guide.local.unit[3]).all()


class TestRefused:
    def test_no_local_latents(self) -> None:
        def model() -> None:
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            with pyro.plate("data", 3):
                pyro.sample("x", dist.Normal(z, 1.0), obs=torch.zeros(3))

        with pytest.raises(ValueError, match="the model has none there: use AutoHMC"):
            AutoSemiHMC(model)()

    def test_two_plates(self) -> None:
        def model() -> None:
            for name in ("first", "second"):
                with pyro.plate(name, 3):
                    z = pyro.sample(f"z {name}", dist.Normal(0.0, 1.0))
                    pyro.sample(f"x {name}", dist.Normal(z, 1.0), obs=torch.zeros(3))

        with pytest.raises(ValueError, match=r"say by plate= which one of \['first', 'second'\]"):
            AutoSemiHMC(model)()
        with pytest.raises(ValueError, match="plate must be one of first, second, got 'frist'; did you mean"):
            AutoSemiHMC(model, plate="frist")()
        assert AutoSemiHMC(model, plate="second")()["z first"].shape == (3,)

    def test_latents_in_two_plates(self) -> None:
        def model() -> None:
            with pyro.plate("groups", 3, dim=-2), pyro.plate("members", 2, dim=-1):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.sample("x", dist.Normal(z, 1.0), obs=torch.zeros(3, 2))

        with pytest.raises(ValueError, match=r"'z' is in \['groups', 'members'\]: replace the other plates"):
            AutoSemiHMC(model, plate="groups")()

    def test_two_subsampled_plates(self) -> None:
        def model() -> None:
            with pyro.plate("groups", 3, dim=-2):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                with pyro.plate("members", 4, subsample_size=2, dim=-1):
                    pyro.sample("x", dist.Normal(z, 1.0), obs=torch.zeros(3, 2))

        with pytest.raises(ValueError, match="site 'x' is in 'members' too: its entries need all of their"):
            AutoSemiHMC(model, plate="groups")()

    def test_a_subsample_without_indices(self) -> None:
        def model(x: Tensor) -> None:
            with pyro.plate("data", 9, subsample=x):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.sample("x", dist.Normal(z, 1.0), obs=x)

        with pytest.raises(ValueError, match="'data' must be subsampled by indices of its entries"):
            AutoSemiHMC(model)(torch.zeros(3))

    def test_another_size(self) -> None:
        def model(x: Tensor) -> None:
            with pyro.plate("data", len(x)):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.sample("x", dist.Normal(z, 1.0), obs=x)

        guide = AutoSemiHMC(model, num_hmc=1)
        guide(torch.zeros(3))
        with pytest.raises(ValueError, match="'data' had 3 entries and has 4: make another guide"):
            guide(torch.zeros(4))

    def test_wrong_entries(self) -> None:
        guide = AutoSemiHMC(poutine.block(selected, hide=["x"]), num_hmc=1)
        with pytest.raises(ValueError, match="'data' has 4 entries, got \\[0, 7\\]"):
            guide(torch.tensor([0, 7]), None)

    def test_wrong_names(self) -> None:
        with pytest.raises(ValueError, match=r"base must be one of .*; did you mean 'mvn'"):
            AutoSemiHMC(linear, base="mvm")

    def test_a_base_of_other_latents(self) -> None:
        with pytest.raises(ValueError, match=r"the base is a guide of \['mu', 'z'\]"):
            AutoSemiHMC(linear, base=lambda _: AutoDiagonalNormal(linear))()
