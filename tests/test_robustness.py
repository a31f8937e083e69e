"""Numerical failure is a mask: a chain turns back, or weighs nothing, and the others do not notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from hmcvi import Bound, Chain, Density, Phase, Weights, elbo, iwae, weigh
from hmcvi.flows import flow_chain
from hmcvi.kernels import (
    HMC,
    Anneal,
    annealed_chain,
    flow_hmc_chain,
    hamiltonian_chain,
    hvae_chain,
    langevin_chain,
    stochastic_flow_chain,
)
from hmcvi.models import VAE
from tests.support.problems import F64, AffineDecoder, LinearGaussian, Mixture, perturb
from tests.support.statistics import assert_mean

MODEL = LinearGaussian()
DIMS = {"dim": 2, "context_dim": 4}


def hamiltonian(**options: object) -> Callable[..., Chain]:
    return lambda step=0.2: hamiltonian_chain(
        **DIMS, num_hmc=2, num_leapfrog=3, hidden=(8,), initial_step_size=step, **options
    )


HAMILTONIAN: dict[str, Callable[..., Chain]] = {
    "global": hamiltonian(),
    "nn partial": hamiltonian(mass="nn", partial=True, step_size="nn"),
    "low-rank": hamiltonian(mass="low-rank"),
    "full partial": hamiltonian(mass="full", partial=True, step_size="dimension"),
    "simple": hamiltonian(accept="simple"),
    "nn accept": hamiltonian(accept="nn", partial=True, mass="full"),
    "hvae": lambda step=0.2: hvae_chain(2, num_leapfrog=3, initial_step_size=step),
    "uha": lambda step=0.2: annealed_chain(**DIMS, num_steps=3, num_leapfrog=2, initial_step_size=step),
    "uha simple": lambda step=0.2: annealed_chain(
        **DIMS, num_steps=3, num_leapfrog=2, initial_step_size=step, accept="simple"
    ),
    "flow hmc": lambda step=0.2: flow_hmc_chain(
        **DIMS, num_flows=2, num_hmc=2, num_leapfrog=2, hidden=(8,), initial_step_size=step
    ),
}
LANGEVIN: dict[str, Callable[..., Chain]] = {
    control or "ula": lambda step=0.02, control=control: langevin_chain(
        **DIMS, num_steps=3, control=control, mass="full", hidden=(8,), initial_step_size=step
    )
    for control in (None, "reverse", "both")
}
LANGEVIN["stochastic flow"] = lambda step=0.02: stochastic_flow_chain(
    **DIMS, num_flows=2, hidden=(8,), initial_step_size=step
)
CHAINS: dict[str, Callable[..., Chain]] = {
    "none": Chain,
    **LANGEVIN,
    "iaf": lambda: flow_chain(**DIMS, num_flows=2, hidden=(8,)),
    **HAMILTONIAN,
}

over_chains = pytest.mark.parametrize("make_chain", CHAINS.values(), ids=CHAINS)
over_hamiltonian = pytest.mark.parametrize("make_chain", HAMILTONIAN.values(), ids=HAMILTONIAN)
over_objectives = pytest.mark.parametrize(
    "objective", [elbo, iwae, Bound(0.5)], ids=["elbo", "iwae", "renyi"]
)


class HazardousDecoder(AffineDecoder):
    """The affine decoder, except that it gives no number where z₁ > 0.6: NaN or inf, and such gradients."""

    def __init__(self, model: LinearGaussian, hazard: str | None) -> None:
        super().__init__(model)
        self.hazard = hazard

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = super().forward(z)
        if self.hazard == "nan":
            loc = loc + 0.0 * (0.6 - z[..., :1]).sqrt()
        if self.hazard == "inf":
            loc = loc / (z[..., :1] <= 0.6).to(loc)
        return loc, scale


def make_vae(chain: Chain, hazard: str | None = None) -> VAE:
    vae = MODEL.vae(chain)
    vae.decoder = HazardousDecoder(MODEL, hazard)
    return vae


def gradients(vae: VAE, loss: Tensor) -> list[Tensor]:
    parameters = list(vae.parameters())
    grads = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]


def all_finite(tensors: list[Tensor]) -> bool:
    return all(tensor.isfinite().all() for tensor in tensors)


@over_chains
@over_objectives
@pytest.mark.parametrize("hazard", ["nan", "inf"])
def test_failed_chains_are_left_out(
    make_chain: Callable[[], Chain], objective: nn.Module, hazard: str
) -> None:
    """A start that fails has weight −inf and no gradient; chains that meet no failure are as they were."""
    torch.manual_seed(0)
    vae = make_vae(perturb(make_chain()), hazard)
    x = MODEL.data(60)
    torch.manual_seed(1)
    run = vae.run(x, 1)
    log_weight = run.weights.log_weight
    dead = log_weight[0] == -torch.inf
    assert not log_weight.isnan().any()
    assert 5 < dead.sum() < 55, "the hazard was not met, or nothing else"
    met = dead  # the hazard, at the start or on the way
    if "diverged" in run.transition.info:
        met = run.transition.info["diverged"].any(0)[0]
        assert (met | ~dead).all()

    bound = objective(run.weights)
    assert (bound[dead] == -torch.inf).all() and bound[~dead].isfinite().all()
    assert all((grad == 0).all() for grad in gradients(vae, bound[dead].sum()))
    assert all_finite(gradients(vae, bound.sum()))
    found = gradients(vae, bound[~met].sum())

    vae.decoder.hazard = None
    torch.manual_seed(1)
    healthy = vae.run(x, 1).weights
    torch.testing.assert_close(log_weight[:, ~met], healthy.log_weight[:, ~met])
    if "accepted" not in run.transition.info:  # the baseline of the acceptance steps has seen the other data
        for grad, wanted in zip(found, gradients(vae, objective(healthy)[~met].sum()), strict=True):
            torch.testing.assert_close(grad, wanted)


@over_chains
def test_one_failed_chain_of_many_has_weight_zero(make_chain: Callable[[], Chain]) -> None:
    """IWAE over K chains: the failed ones count as zeros, and only they do."""
    torch.manual_seed(0)
    vae = make_vae(perturb(make_chain()), "nan")
    torch.manual_seed(1)
    weights = vae.weights(MODEL.data(40), 6)
    dead = weights.log_weight == -torch.inf
    assert (dead.any(0) & ~dead.all(0)).any()
    bound = iwae(weights)
    torch.testing.assert_close(bound, weights.log_weight.exp().mean(0).log())
    assert all_finite(gradients(vae, bound[~dead.all(0)].sum()))


@over_objectives
def test_a_datum_without_a_living_chain(objective: nn.Module) -> None:
    """All −inf: the bound is −inf, and neither this datum nor the others get a gradient that is no number."""
    parameter = torch.tensor(0.3, dtype=F64, requires_grad=True)
    log_weight = parameter * torch.ones(3, 2, dtype=F64)
    log_weight = log_weight.where(torch.tensor([True, False]), -torch.inf)
    log_choice = parameter * torch.ones(3, 2, dtype=F64)
    bound = objective(Weights(log_weight, log_choice, torch.zeros(3, 2, dtype=F64)))
    assert bound[0].isfinite() and bound[1] == -torch.inf
    (grad,) = torch.autograd.grad(bound.sum(), parameter)
    torch.testing.assert_close(grad, torch.tensor(1.0, dtype=F64))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0])
def test_bounds_are_smooth_around_a_weight_of_zero(alpha: float) -> None:
    log_weight = torch.tensor([[-torch.inf], [0.0], [1.0]], dtype=F64, requires_grad=True)
    zeros = torch.zeros(3, 1, dtype=F64)
    (grad,) = torch.autograd.grad(Bound(alpha)(Weights(log_weight, zeros, zeros)).sum(), log_weight)
    assert grad.isfinite().all() and grad[0] == 0


def test_all_weights_zero_has_finite_gradients() -> None:
    log_weight = torch.full((3, 2), -torch.inf, dtype=F64, requires_grad=True)
    zeros = torch.zeros(3, 2, dtype=F64)
    for objective in (iwae, Bound(0.5)):
        (grad,) = torch.autograd.grad(objective(Weights(log_weight, zeros, zeros)).sum(), log_weight)
        assert grad.isfinite().all()


@over_hamiltonian
@over_objectives
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_samples", [1, 4])
def test_absurd_steps_do_not_poison_the_parameters(
    make_chain: Callable[..., Chain], objective: nn.Module, dtype: torch.dtype, num_samples: int
) -> None:
    """ε = 10⁶: everything turns back or is rejected, and training goes on."""
    torch.manual_seed(0)
    vae = make_vae(make_chain(1e6)).to(dtype)
    run = vae.run(MODEL.data(5).to(dtype), num_samples)
    assert run.transition.info["diverged"].all()
    bound = objective(run.weights)
    assert bound.isfinite().all() and all_finite(gradients(vae, bound.sum()))
    if "accepted" in run.transition.info:
        assert not run.transition.info["accepted"].any()


@pytest.mark.parametrize("make_chain", LANGEVIN.values(), ids=LANGEVIN)
@over_objectives
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [1e6, 1e30])
def test_absurd_langevin_steps_weigh_nothing(
    make_chain: Callable[..., Chain], objective: nn.Module, dtype: torch.dtype, step: float
) -> None:
    """Their energy rises by more than 1000: weight zero, no gradient, and a position that is a number."""
    torch.manual_seed(0)
    vae = make_vae(perturb(make_chain(step))).to(dtype)
    run = vae.run(MODEL.data(5).to(dtype), 4)
    assert run.transition.info["diverged"].all()
    assert (run.weights.log_weight == -torch.inf).all()
    assert run.transition.state.position.isfinite().all()
    assert all_finite(gradients(vae, objective(run.weights).sum()))


def test_langevin_dynamics_pass_through_where_the_target_is_zero() -> None:
    """There is no force there, and E[w] = Z still."""
    problem = Mixture()
    walled = Density(lambda z: problem.log_base(z).where(z[..., 0] > 0.3, -torch.inf), base=problem.base)
    evidence = Normal(0.0, problem.base_scale).cdf(torch.tensor(-0.3, dtype=F64))
    chain = perturb(langevin_chain(2, 0, num_steps=3, initial_step_size=0.3))
    torch.manual_seed(0)
    start = problem.draw_base(100_000)
    with torch.no_grad():
        weights = weigh(chain, Phase(start), problem.log_base(start), walled)
    assert (weights.transition.info["diverged"].any(0) & weights.log_weight.isfinite()).any()
    assert_mean(weights.log_weight.exp(), evidence)


@over_chains
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_data_that_are_no_numbers(make_chain: Callable[[], Chain], bad: float) -> None:
    torch.manual_seed(0)
    vae, x = make_vae(perturb(make_chain())), MODEL.data(6)
    valid = torch.tensor([True, False, True, True, False, True])
    broken = x.clone()
    broken[1, 2], broken[4] = bad, bad
    for objective, num_samples in ((elbo, 1), (iwae, 3)):
        torch.manual_seed(1)
        bound = vae.bound(broken, num_samples, objective)
        torch.manual_seed(1)
        healthy = vae.bound(x, num_samples, objective)
        assert (bound[~valid] == -torch.inf).all()
        torch.testing.assert_close(bound[valid], healthy[valid])
        found, wanted = gradients(vae, bound.sum()), gradients(vae, healthy[valid].sum())
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_no_estimate_for_data_that_are_no_numbers() -> None:
    """An image of NaN has no likelihood; it must not get that of another image."""
    vae, x = MODEL.vae(), MODEL.data(3)
    x[1, 0] = torch.nan
    estimate = vae.importance_nll(x, num_samples=50)
    assert estimate.nll[[0, 2]].isfinite().all()
    assert not estimate.nll[1].isfinite()


def test_annealing_from_where_the_target_is_zero() -> None:
    """A start outside the support of γ has weight zero, or is carried into it: never NaN."""
    problem = Mixture()
    density = problem.density
    walled = type(density)(
        lambda z: problem.log_prob(z).where(z[..., 0] < 0.5, -torch.inf), base=problem.base
    )
    torch.manual_seed(0)
    start = Phase(problem.draw_base(500))
    chain = Chain(Anneal(lambda d: HMC(d, 0.3, 3), beta) for beta in (0.3, 0.7, 1.0))
    transition = chain(start, walled)
    log_weight = (
        transition.state.log_density(walled) - problem.log_base(start.position) + transition.log_ratio
    )
    assert not log_weight.isnan().any()
    assert (log_weight[start.position[:, 0] < 0.5]).isfinite().all()


def test_an_encoder_that_overflows_for_one_datum() -> None:
    """exp of a large output: an infinite scale for one x is a failed datum, not a failed batch."""
    torch.manual_seed(0)
    vae = make_vae(perturb(hamiltonian()()))
    vae.encoder = ExponentialEncoder()
    x = MODEL.data(4)
    x[2, 0] = 1e4
    torch.manual_seed(1)
    bound = vae.bound(x, 1)
    assert bound[[0, 1, 3]].isfinite().all() and bound[2] == -torch.inf
    assert all_finite(gradients(vae, bound.sum()))


class ExponentialEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.ones(2, 4, dtype=F64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output = x @ self.weight.T
        return output.tanh(), output.exp()
