"""Where a method has a parameter, its limits are the simpler methods, exactly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmcvi import Bound, Chain, Phase, Weights, elbo, iwae
from hmcvi.flows import Bijection, Leapfrog, flow_chain
from hmcvi.kernels import (
    DropMomentum,
    RefreshMomentum,
    annealed_chain,
    flow_hmc_chain,
    hamiltonian_chain,
    hvi_chain,
    langevin_chain,
    stochastic_flow_chain,
)
from tests.support.problems import F64, LinearGaussian, Mixture, perturb

MODEL = LinearGaussian()
DIMS = {"dim": MODEL.latent_dim, "context_dim": MODEL.data_dim}


def log_weights(chain: Chain | None, num_samples: int = 20) -> Tensor:
    torch.manual_seed(1)
    return MODEL.vae(chain).log_weights(MODEL.data(3), num_samples)


@pytest.mark.parametrize("accept", [None, "simple", "nn"])
@pytest.mark.parametrize("mass", ["identity", "nn", "low-rank", "full"])
def test_no_persistence_is_the_unshared_path(mass: str, accept: str | None) -> None:
    """α = 0: a momentum refreshed altogether is one dropped and one drawn, if the reverse models agree."""
    options = {"num_hmc": 3, "num_leapfrog": 2, "mass": mass, "accept": accept, "hidden": (8,)}
    torch.manual_seed(0)
    unshared = perturb(hamiltonian_chain(**DIMS, **options))
    partial = hamiltonian_chain(**DIMS, **options, partial=0.0).double()
    agree(partial, unshared)
    torch.testing.assert_close(log_weights(partial), log_weights(unshared), rtol=1e-10, atol=1e-10)


def agree(partial: Chain, unshared: Chain) -> None:
    """Give `partial` the parameters of `unshared`, and make r_V blind to the refreshed momentum."""
    refresh = next(step for step in partial.steps if isinstance(step, RefreshMomentum))
    final = next(step for step in unshared.steps if isinstance(step, DropMomentum)).reverse
    for step in (refresh, partial.steps[-1]):
        wide, narrow = step.reverse.net, final.net
        seen = narrow.from_inputs.in_features
        with torch.no_grad():
            wide.from_inputs.weight.zero_()
            wide.from_inputs.weight[:, :seen] = narrow.from_inputs.weight
            wide.from_inputs.bias.copy_(narrow.from_inputs.bias)
        wide.from_context.load_state_dict(narrow.from_context.state_dict())
        wide.body.load_state_dict(narrow.body.state_dict())
    partial.steps[1].load_state_dict(unshared.steps[1].state_dict())


@pytest.mark.parametrize("builder", ["hamiltonian", "annealed"])
def test_the_encoders_coordinates_are_a_mass(builder: str) -> None:
    """Standardising z by N(μ, σ²) and moving with M = I is moving z with M = diag(1/σ²), to rounding."""
    settings: dict = {"num_leapfrog": 2, "partial": 0.6, "mass": "global", "initial_step_size": 0.3}

    def make(coordinates: str) -> Chain:
        if builder == "annealed":
            return annealed_chain(**DIMS, num_steps=3, coordinates=coordinates, **settings).double()
        return hamiltonian_chain(**DIMS, num_hmc=3, coordinates=coordinates, **settings).double()

    standardised, plain = make("encoder"), make("data")
    with torch.no_grad():
        plain.steps[0].mass.log_scale.copy_(-MODEL.vae().encoder.log_scale)
    torch.testing.assert_close(log_weights(standardised), log_weights(plain), rtol=1e-10, atol=1e-10)


def test_no_transitions_is_the_plain_vae() -> None:
    plain = log_weights(None)
    for chain in (
        Chain(),
        hamiltonian_chain(**DIMS, num_hmc=0, num_leapfrog=3),
        annealed_chain(**DIMS, num_steps=0),
        langevin_chain(**DIMS, num_steps=0),
        stochastic_flow_chain(**DIMS, num_flows=0),
        flow_chain(**DIMS, num_flows=0),
        flow_hmc_chain(**DIMS, num_flows=0, num_hmc=0, num_leapfrog=1),
    ):
        assert torch.equal(log_weights(chain), plain)


def test_plain_vae_has_the_plain_weight() -> None:
    """log p(x, z) − log q0(z|x)"""
    vae, x = MODEL.vae(), MODEL.data(3)
    run = vae.run(x, 20)
    z, (loc, scale) = run.start.position, vae.encoder(x)
    base = torch.distributions.Normal(loc, scale).log_prob(z).sum(-1)
    torch.testing.assert_close(run.weights.log_weight, vae.log_joint(z, x) - base)


def test_untrained_reversal_gives_the_plain_weight_back() -> None:
    """With r = N(0, M) an exact trajectory keeps H, and log w is that of its start."""
    chain = hvi_chain(**DIMS, num_hmc=2, num_leapfrog=20, hidden=(8,), initial_step_size=1e-3).double()
    torch.manual_seed(1)
    run = MODEL.vae(chain).run(MODEL.data(3), 20)
    torch.testing.assert_close(run.weights.log_weight.detach(), run.weights.initial, rtol=0, atol=1e-4)


@pytest.mark.parametrize("partial", [False, True])
def test_identity_mass_is_the_untrained_global_one(partial: bool) -> None:
    def weights(mass: str) -> Tensor:
        torch.manual_seed(0)
        chain = hamiltonian_chain(
            **DIMS, num_hmc=2, num_leapfrog=2, mass=mass, partial=partial, hidden=(8,)
        ).double()
        return log_weights(chain)

    torch.testing.assert_close(weights("identity"), weights("global"), rtol=1e-13, atol=1e-13)


def test_full_acceptance_is_no_acceptance() -> None:
    """With tiny steps nothing is rejected and "simple" pays an energy difference of nothing."""
    options = {"num_hmc": 2, "num_leapfrog": 2, "hidden": (8,), "initial_step_size": 1e-4}
    accepted = perturb(hamiltonian_chain(**DIMS, **options, accept="simple"), scale=0.0)
    torch.manual_seed(1)
    run = MODEL.vae(accepted).run(MODEL.data(3), 1)
    assert run.transition.info["accepted"].all()
    assert run.transition.info["acceptance"].abs().max() < 1e-6


def weights_of(log_weight: Tensor) -> Weights:
    noise = torch.linspace(-1, 1, log_weight.numel(), dtype=F64).view(log_weight.shape)
    return Weights(log_weight, torch.zeros_like(log_weight), noise)


LOG_WEIGHTS = torch.tensor([[0.3, -2.0], [1.4, -2.5], [-3.0, 0.1]], dtype=F64)


def test_one_importance_sample_is_its_log_weight() -> None:
    single = weights_of(LOG_WEIGHTS[:1])
    assert torch.equal(iwae(single), LOG_WEIGHTS[0])
    for alpha in (0.0, 0.3, 2.0):
        torch.testing.assert_close(Bound(alpha)(single), LOG_WEIGHTS[0])


def test_renyi_bound_ends_at_iwae_and_elbo() -> None:
    weights = weights_of(LOG_WEIGHTS)._replace(noise=torch.zeros_like(LOG_WEIGHTS))
    torch.testing.assert_close(iwae(weights), LOG_WEIGHTS.exp().mean(0).log())
    assert torch.equal(Bound(0.0)(weights), iwae(weights)) and torch.equal(Bound(1.0)(weights), elbo(weights))
    torch.testing.assert_close(elbo(weights), LOG_WEIGHTS.mean(0))
    for gap in (1e-4, -1e-4):
        near = Bound(1.0 - gap)(weights) - elbo(weights)
        slope = 0.5 * LOG_WEIGHTS.var(0, unbiased=False)  # the second cumulant
        torch.testing.assert_close(near / gap, slope, rtol=1e-3, atol=1e-3)
    bounds = torch.stack([Bound(alpha)(weights) for alpha in (0.0, 0.3, 0.7, 1.0, 1.5, 3.0)])
    assert (bounds.diff(dim=0) < 0).all(), "the Rényi bound falls with α"


def test_known_entropies_leave_out_the_noise_of_the_elbo() -> None:
    weights = weights_of(LOG_WEIGHTS)
    bound = Bound(known_entropies=True)
    torch.testing.assert_close(bound(weights), (LOG_WEIGHTS - weights.noise).mean(0))
    torch.testing.assert_close(elbo(weights), LOG_WEIGHTS.mean(0))


@pytest.mark.parametrize("mass", ["identity", "global", "nn", "full"])
def test_langevin_dynamics_are_single_leapfrogs_of_new_momenta(mass: str) -> None:
    """ε = h²/2: the noise is a momentum drawn, that of the reverse step the momentum dropped."""
    hamiltonian = perturb(
        annealed_chain(**DIMS, num_steps=3, partial=False, mass=mass, step_size="dimension")
    )
    langevin = langevin_chain(**DIMS, num_steps=3, mass=mass, step_size="dimension").double()
    (leapfrog, *_), first = (s for s in hamiltonian.steps if isinstance(s, Leapfrog)), langevin.steps[0]
    first.mass.load_state_dict(leapfrog.mass.state_dict())
    first.temperature.load_state_dict(leapfrog.temperature.state_dict())
    with torch.no_grad():
        first.step_size.log_step.copy_((leapfrog.step_size.log_step.exp() ** 2 / 2).log())
    torch.testing.assert_close(log_weights(langevin), log_weights(hamiltonian), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mass", ["identity", "full"])
def test_an_untrained_reversal_of_annealing_is_the_stationary_one(mass: str) -> None:
    """LDVI starts as UHA."""
    settings = {"num_steps": 4, "mass": mass, "hidden": (8,)}
    stationary, learned = (
        log_weights(annealed_chain(**DIMS, **settings, reverse=reverse).double())
        for reverse in (None, "gaussian")
    )
    torch.testing.assert_close(learned, stationary, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("control", ["reverse", "both"])
def test_untrained_control_is_none(control: str) -> None:
    plain, controlled = (
        log_weights(langevin_chain(**DIMS, num_steps=3, control=c, hidden=(8,)).double())
        for c in (None, control)
    )
    torch.testing.assert_close(controlled, plain, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("flow", ["iaf", "coupling"])
def test_a_stochastic_flow_without_moves_or_without_flow(flow: str) -> None:
    untrained = stochastic_flow_chain(**DIMS, num_flows=3, flow=flow, hidden=(8,)).double()
    plain = langevin_chain(**DIMS, num_steps=3).double()
    torch.testing.assert_close(log_weights(untrained), log_weights(plain), rtol=1e-12, atol=1e-12)
    still = stochastic_flow_chain(**DIMS, num_flows=2, num_steps=0, flow=flow, hidden=(8,))
    assert all(type(step) in (Chain, Bijection) for step in perturb(still).steps)


def test_an_annealed_chain_of_one_density_telescopes() -> None:
    """If γ is its own base times a constant, every weight is that constant: nothing is left to correct."""
    problem = Mixture()
    chain = perturb(annealed_chain(2, 0, num_steps=3, initial_step_size=1e-3))
    density = problem.density
    density = type(density)(lambda z: problem.log_base(z) + 0.7, base=problem.base)
    torch.manual_seed(0)
    start = Phase(problem.draw_base(50))
    transition = chain(start, density)
    log_weight = (
        transition.state.log_density(density) - problem.log_base(start.position) + transition.log_ratio
    )
    torch.testing.assert_close(log_weight, torch.full_like(log_weight, 0.7), rtol=0, atol=1e-4)
