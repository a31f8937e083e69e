"""AutoHMC: its traces weigh what the chain weighs, whatever it starts from and whoever runs it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions.transforms import AffineAutoregressive
from pyro.infer import SVI, Predictive, RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)
from torch import Tensor

from hmcvi import Phase
from hmcvi.density import standard_log_prob
from hmcvi.kernels import annealed_chain
from hmcvi.pyro import AutoHMC, density_from_pyro
from hmcvi.pyro.transport import pulled_back, transport
from tests.support.problems import F64, perturb
from tests.support.pyro_models import EightSchoolsPosterior, change_point, eight_schools, log_weights, number
from tests.support.statistics import Z, assert_evidence, assert_mean, mean_and_error

BASES: dict[str, Callable[..., Any]] = {
    "diagonal": AutoDiagonalNormal,
    "full": AutoMultivariateNormal,
    "low-rank": functools.partial(AutoLowRankMultivariateNormal, rank=1),
    "flow": functools.partial(AutoIAFNormal, hidden_dim=[12], num_transforms=2),
}


class Tug:
    """m ~ Beta(2, 3), z ~ N(0, I), x ~ N(m + z_0 − 2 z_1, 3²): evidence by quadrature over m."""

    weights = torch.tensor([1.0, -2.0], dtype=F64)

    def __call__(self) -> None:
        m = pyro.sample("m", dist.Beta(number(2.0), 3.0))
        z = pyro.sample("z", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(m + (z * self.weights).sum(-1), 3.0), obs=number(3.0))

    def log_evidence(self) -> float:
        m = torch.linspace(0, 1, 100_001, dtype=F64)
        log_joint = dist.Beta(number(2.0), 3.0).log_prob(m) + dist.Normal(m, 14**0.5).log_prob(number(3.0))
        return float(torch.trapezoid(log_joint.exp(), m).log())


def wide(guide: AutoHMC, *args: Any) -> AutoHMC:
    """A guide with reverse models away from their start, on a base wider than the posterior."""
    guide(*args)
    perturb(guide.chain, 0.05)
    with torch.no_grad():
        for name, parameter in guide.base.named_parameters():
            if "scale" in name and "tril" not in name:
                parameter.fill_(0.7)
        for part in guide.base.modules():
            if isinstance(part, AffineAutoregressive):  # near z ↦ 1.2 z
                part.arn.layers[-1].weight.mul_(0.3)
                part.arn.layers[-1].bias.copy_(torch.tensor([0.0, 0.2]).repeat_interleave(3))
    return guide


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    "settings",
    [
        {"partial": True},
        {"partial": False, "mass": "identity"},
        {"partial": 0.5, "accept": "simple", "mass": "full"},
        {"partial": True, "accept": "nn"},
    ],
    ids=str,
)
def test_weights_have_the_evidence_as_their_mean(base: str, settings: dict[str, Any]) -> None:
    tug = Tug()
    guide = wide(
        AutoHMC(tug, 2, 2, base=BASES[base], chain="hamiltonian", hidden=(8,), num_particles=1, **settings)
    )
    assert_evidence(log_weights(tug, guide, 40_000, 0), tug.log_evidence())


@pytest.mark.parametrize("base", ["diagonal", "flow"])
def test_a_trace_weighs_what_the_chain_weighs(base: str) -> None:
    """The same noise through the chain by hand, on the density of the model in the base's coordinates."""
    guide = AutoHMC(eight_schools, 2, 3, accept="nn", base=BASES[base], hidden=(8,), num_particles=1)
    guide()
    perturb(guide.chain)
    pyro.set_rng_seed(1)
    by_guide = log_weights(eight_schools, guide, 7, nesting=1)
    pyro.set_rng_seed(1)
    density = density_from_pyro(eight_schools)
    pyro.set_rng_seed(1)
    target = pulled_back(density.log_prob, transport(guide.base.get_posterior()))
    noise = torch.randn(7, 1, density.layout.dim, dtype=F64)[:, 0]
    with torch.no_grad():
        transition = guide.chain(Phase(noise[:, None]), target)
    by_hand = target.log_prob(transition.state.position) - standard_log_prob(noise[:, None])
    torch.testing.assert_close(by_guide, (by_hand + transition.log_ratio)[:, 0])


def test_without_steps_it_is_its_base() -> None:
    tug = Tug()
    base = AutoMultivariateNormal(tug)
    guide = AutoHMC(tug, num_hmc=0, base=base, num_particles=1)
    guide()
    elbo = Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=0)
    losses = []
    for either in (guide, base):
        pyro.set_rng_seed(2)
        losses.append(elbo.loss(tug, either))
    assert losses[0] == pytest.approx(losses[1])


def test_annealed_chains_fit_in() -> None:
    tug = Tug()
    chain = annealed_chain(3, 0, num_steps=3, initial_step_size=0.3)
    guide = wide(AutoHMC(tug, base=AutoDiagonalNormal, chain=chain, num_particles=1))
    assert_evidence(log_weights(tug, guide, 20_000, 0), tug.log_evidence())


@pytest.mark.slow
@pytest.mark.parametrize("accept", ["simple", "nn"])
def test_gradient_is_unbiased_with_random_acceptance(accept: str) -> None:
    """d/dθ E[log w] against differences of E[log w], θ the step size and the mean of the base."""

    def model() -> None:
        z = pyro.sample("z", dist.Normal(number(0.0), 1.0))
        pyro.sample("x", dist.Normal(z, 1.0), obs=number(1.0))

    guide = AutoHMC(
        model,
        num_hmc=1,
        num_leapfrog=1,
        accept=accept,
        base=AutoDiagonalNormal,
        hidden=(4,),
        initial_step_size=0.9,
        num_particles=1,
    )
    guide()
    perturb(guide.chain)
    with torch.no_grad():
        guide.base.scale_unconstrained.fill_(0.5)
    log_step = next(p for n, p in guide.chain.named_parameters() if n.endswith("log_step"))
    elbo = Trace_ELBO(num_particles=500, vectorize_particles=True, max_plate_nesting=0)

    def gradients() -> Tensor:
        loss = -elbo.differentiable_loss(model, guide)
        return torch.stack([g.sum() for g in torch.autograd.grad(loss, [log_step, guide.base.loc])])

    actual = torch.stack([gradients() for _ in range(40)])
    expected = []
    for parameter in (log_step, guide.base.loc):
        ends = []
        for shift in (0.1, -0.1):
            with torch.no_grad():
                parameter.add_(shift)
                ends.append(log_weights(model, guide, 200_000, 0))
                parameter.add_(-shift)
        expected.append((ends[0] - ends[1]) / 0.2)
    slope, slope_error = mean_and_error(torch.stack(expected, -1))
    gradient, gradient_error = mean_and_error(actual)
    error = (slope_error.square() + gradient_error.square()).sqrt()
    assert ((gradient - slope).abs() <= Z * error).all(), (gradient, slope, error)


def test_particles_one_by_one_or_vectorised() -> None:
    """The same bound, and the same guide behind IWAE."""
    tug = Tug()
    guide = wide(AutoHMC(tug, 1, 2, base=AutoDiagonalNormal, hidden=(8,), num_particles=1))
    with torch.no_grad():
        losses = [
            torch.tensor(
                [Trace_ELBO(num_particles=20, vectorize_particles=v).loss(tug, guide) for _ in range(n)]
            )
            for v, n in ((False, 8), (True, 40))
        ]
        iwae = -RenyiELBO(alpha=0.0, num_particles=2000, vectorize_particles=True).loss(tug, guide)
    (one, one_error), (many, many_error) = map(mean_and_error, losses)
    assert (one - many).abs() <= Z * (one_error**2 + many_error**2).sqrt()
    assert -float(many) < iwae == pytest.approx(tug.log_evidence(), abs=0.3)


def test_renyi_trains_it() -> None:
    tug = Tug()
    guide = AutoHMC(tug, 1, 1, base=AutoDiagonalNormal, chain="hamiltonian", hidden=(4,))
    elbo = RenyiELBO(alpha=0.0, num_particles=4, vectorize_particles=True)
    svi = SVI(tug, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
    before = [value.clone() for value in (svi.step(), *guide.parameters()) if isinstance(value, Tensor)]
    svi.step()
    moved = [bool((new != old).any()) for old, new in zip(before, guide.parameters(), strict=True)]
    assert sum(moved) >= len(moved) - 1  # the mass of r(v | z) at its start may have no gradient yet


@pytest.mark.slow
def test_training_beats_the_base() -> None:
    """On eight schools: by far more than the error of the comparison."""
    bounds = []
    settings: dict[str, Any] = {"base": AutoDiagonalNormal, "chain": "hamiltonian", "hidden": (16,)}
    refined_guide = functools.partial(AutoHMC, num_hmc=2, num_leapfrog=3, num_particles=1, **settings)
    for make in (AutoDiagonalNormal, refined_guide):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        guide = make(eight_schools)
        elbo = Trace_ELBO(num_particles=8, vectorize_particles=True)
        svi = SVI(eight_schools, guide, pyro.optim.ClippedAdam({"lr": 0.04, "lrd": 0.985}), elbo)
        for _ in range(150):
            svi.step()
        bounds.append(mean_and_error(log_weights(eight_schools, guide, 20_000, nesting=1)))
    (plain, plain_error), (refined, refined_error) = bounds
    assert refined - plain > 5 * (plain_error**2 + refined_error**2).sqrt()


@pytest.mark.slow
def test_annealing_closes_a_good_part_of_the_gap() -> None:
    """On eight schools, from a base that is the best normal distribution already."""
    elbo = Trace_ELBO(num_particles=32, vectorize_particles=True)
    base = AutoDiagonalNormal(eight_schools)
    chain = annealed_chain(10, 0, num_steps=8, initial_step_size=0.4).double()
    bounds = []
    for guide, steps in ((base, 600), (AutoHMC(eight_schools, base=base, chain=chain, num_particles=1), 100)):
        svi = SVI(
            eight_schools, guide, pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.05 ** (1 / steps)}), elbo
        )
        for _ in range(steps):
            svi.step()
        bounds.append(float(log_weights(eight_schools, guide, 20_000, nesting=1).mean().detach()))
    plain, refined = bounds
    assert refined - plain > 0.3 * (EightSchoolsPosterior().log_evidence() - plain)


def test_describes_the_refined_distribution() -> None:
    guide = AutoHMC(eight_schools, num_hmc=1, num_leapfrog=2, hidden=(8,))
    svi = SVI(eight_schools, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    svi.step()
    samples = guide.sample_posterior(300)
    assert {name: tuple(value.shape) for name, value in samples.items()} == {
        "mu": (300,),
        "tau": (300,),
        "eta": (300, 8),
    }
    assert (samples["tau"] > 0).all()
    quantiles = guide.quantiles([0.1, 0.5, 0.9])
    assert quantiles["eta"].shape == (3, 8)
    assert (quantiles["tau"][0] < quantiles["tau"][1]) and (quantiles["tau"][1] < quantiles["tau"][2])
    assert guide.median()["mu"].shape == ()
    inside = (samples["mu"] > quantiles["mu"][0]) & (samples["mu"] < quantiles["mu"][2])
    assert_mean(inside.double()[:, None], 0.8)
    for parallel in (False, True):
        drawn = Predictive(eight_schools, guide=guide, num_samples=5, parallel=parallel)()
        assert drawn["eta"].shape[0] == 5 and drawn["eta"].shape[-1] == 8


def test_a_trained_base_is_kept() -> None:
    tug = Tug()
    base = AutoDiagonalNormal(tug)
    svi = SVI(tug, base, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(5):
        svi.step()
    loc = base.loc.detach().clone()
    guide = AutoHMC(tug, base=base)
    guide()
    assert torch.equal(guide.base.loc, loc)


def test_guides_go_into_files() -> None:
    """By their parameters, as modules do."""
    first, second = (AutoHMC(eight_schools, num_hmc=1, num_leapfrog=1, hidden=(4,)) for _ in range(2))
    first()
    perturb(first.chain)
    second()
    second.load_state_dict(first.state_dict())
    draws = []
    for guide in (first, second):
        pyro.set_rng_seed(3)
        draws.append(guide.sample_posterior(3)["mu"])
    assert torch.equal(*draws)


def test_says_what_is_wrong() -> None:
    guide = AutoHMC(eight_schools)
    for call in (guide.median, lambda: guide.quantiles([0.5]), lambda: guide.sample_posterior(3)):
        with pytest.raises(RuntimeError, match="has not seen its model"):
            call()
    with pytest.raises(ValueError, match=r"discrete sample sites: 'day'"):
        AutoHMC(change_point)(torch.ones(3, dtype=F64))
    with pytest.raises(RuntimeError, match="AutoHMC found no latent variables"):
        AutoHMC(lambda: None)()
    with pytest.raises(ValueError, match="mass must be one of"):
        AutoHMC(eight_schools, mass="heavy")
    with pytest.raises(ValueError, match="num_leapfrog must be at least 1"):
        AutoHMC(eight_schools, num_leapfrog=0)
    with pytest.raises(ValueError, match="base must be an autoguide over all latents"):
        AutoHMC(eight_schools, base=AutoDelta)
    with pytest.raises(ValueError, match="normal distribution over vectors"):
        AutoHMC(eight_schools, base=AutoLaplaceApproximation)()
    blind = AutoDiagonalNormal(poutine.block(eight_schools, hide=["mu"]))
    with pytest.raises(ValueError, match="the base is a guide of"):
        AutoHMC(eight_schools, base=blind)()
    guide()
    with pyro.plate("particles", 8, dim=-1), pytest.raises(ValueError, match="collide with the plates"):
        guide()
    shallow = Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=0)
    with pytest.raises(ValueError, match="build the ELBO with a larger max_plate_nesting, or leave it out"):
        shallow.loss(eight_schools, guide)

    def subsampled() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 10, subsample_size=5) as index:
            pyro.sample("x", dist.Normal(z, 1.0), obs=torch.ones(10)[index])

    with pytest.raises(NotImplementedError, match="AutoHMC does not support model with subsample sites"):
        AutoHMC(subsampled)()
