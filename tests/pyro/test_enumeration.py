"""Discrete latents that are summed out: guides under TraceEnum_ELBO, kernels and densities."""

from __future__ import annotations

import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC, SVI, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDiagonalNormal
from torch import Tensor

import hmcvi
from hmcvi.kernels import HMC
from hmcvi.pyro import AutoHMC, KernelAdapter, density_from_pyro, vectorized_mcmc
from hmcvi.pyro.density import make_density
from tests.support.problems import F64
from tests.support.pyro_models import number
from tests.support.statistics import assert_evidence

DATA = torch.tensor([-1.2, 0.3, 1.9, 2.4], dtype=F64)
WEIGHTS = torch.tensor([0.3, 0.7], dtype=F64)


@config_enumerate
def mixture(data: Tensor) -> None:
    """gap ~ N(0, 1); each x_i ~ N(0, 1) or N(gap, 1), by a label of its own."""
    gap = pyro.sample("gap", dist.Normal(number(0.0), 1.0))
    with pyro.plate("data", len(data)):
        label = pyro.sample("label", dist.Categorical(WEIGHTS))
        pyro.sample("x", dist.Normal(gap * label, 1.0), obs=data)


@config_enumerate
def coin(data: Tensor) -> None:
    """One label for all data, and a latent that depends on it."""
    label = pyro.sample("label", dist.Bernoulli(number(0.4)))
    centre = pyro.sample("centre", dist.Normal(3 * label - 1, 1.0))
    with pyro.plate("data", len(data)):
        pyro.sample("x", dist.Normal(centre, 1.0), obs=data)


def log_joint_of_mixture(gap: Tensor) -> Tensor:
    """log p(x, gap)  [n] -> [n]"""
    means = torch.stack([torch.zeros_like(gap), gap], -1)[..., None, :]
    parts = dist.Normal(means, 1.0).log_prob(DATA[:, None]) + WEIGHTS.log()
    return dist.Normal(number(0.0), 1.0).log_prob(gap) + parts.logsumexp(-1).sum(-1)


def log_joint_of_coin(centre: Tensor) -> Tensor:
    prior = torch.stack(
        [dist.Normal(mean, 1.0).log_prob(centre) + number(p).log() for mean, p in ((-1.0, 0.6), (2.0, 0.4))]
    ).logsumexp(0)
    return prior + dist.Normal(centre[:, None], 1.0).log_prob(DATA).sum(-1)


CASES = {"mixture": (mixture, log_joint_of_mixture), "coin": (coin, log_joint_of_coin)}


def log_evidence(case: str) -> float:
    line = torch.linspace(-12, 12, 20_001, dtype=F64)
    return float(torch.trapezoid(CASES[case][1](line).exp(), line).log())


@pytest.mark.parametrize("case", CASES)
def test_the_density_is_the_sum_over_labels(case: str) -> None:
    model, exact = CASES[case]
    density = density_from_pyro(model, DATA)
    assert density.vectorized
    points = torch.tensor([[-1.0], [0.2], [3.0]], dtype=F64, requires_grad=True)
    torch.testing.assert_close(density.log_prob(points), exact(points[:, 0]))
    (expected,) = torch.autograd.grad(exact(points[:, 0]).sum(), points)
    torch.testing.assert_close(density.value_and_grad(points.detach())[1], expected)


def test_the_prior_sums_too() -> None:
    density = make_density("test", coin, (DATA,), {}, warn=False)
    points = torch.tensor([[-1.0], [2.5]], dtype=F64)
    likelihood = dist.Normal(points, 1.0).log_prob(DATA).sum(-1)
    assert density.base is not None
    torch.testing.assert_close(density.base.log_prob(points), log_joint_of_coin(points[:, 0]) - likelihood)


@pytest.mark.parametrize("case", CASES)
def test_guides_bound_the_evidence_under_enumeration(case: str) -> None:
    model = CASES[case][0]
    guide = AutoHMC(model, num_hmc=2)
    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
    for _ in range(3):
        assert svi.step(DATA) < 100
    with torch.no_grad():
        guide.base.root.mul_(1.3)
        log_weights = -torch.tensor([elbo.loss(model, guide, DATA) for _ in range(400)], dtype=F64)
    assert_evidence(log_weights, log_evidence(case), least_ess=200)
    assert set(guide.sample_posterior(3)) == {"gap" if case == "mixture" else "centre"}


@pytest.mark.slow
def test_kernels_sum_them_out() -> None:
    line = torch.linspace(-8, 8, 4001, dtype=F64)
    share = log_joint_of_mixture(line).softmax(0)
    mean, sd = share @ line, (share @ line.square() - (share @ line).square()).sqrt()
    settings = {"step_size": 0.5, "num_steps": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hmcvi.SamplingWarning)
        draws = vectorized_mcmc(
            mixture, HMC, DATA, num_chains=10, num_samples=40, warmup_steps=0, settings=settings, seed=0
        )["gap"]
    assert float((draws.mean() - mean).abs() / sd) < 0.5
    mcmc = MCMC(KernelAdapter(mixture, HMC), num_samples=5, warmup_steps=5, disable_progbar=True)
    mcmc.run(DATA)
    assert set(mcmc.get_samples()) == {"gap"}


@config_enumerate
def hidden_markov(data: Tensor) -> None:
    """Three states with means of their own; the two chains of states share their transitions."""
    with pyro.plate("states", 3):
        transition = pyro.sample("transition", dist.Dirichlet(torch.ones(3, dtype=F64)))
        mean = pyro.sample("mean", dist.Normal(number(0.0), 1.0))
    with pyro.plate("chains", 2):
        state: Tensor | int = 0
        for index in pyro.markov(range(len(data))):
            state = pyro.sample(f"state_{index}", dist.Categorical(transition[state]))
            pyro.sample(f"x_{index}", dist.Normal(mean[state], 1.0), obs=data[index])


def forward_algorithm(transition: Tensor, mean: Tensor, data: Tensor) -> Tensor:
    """log p(data | parameters) of one chain."""
    emission = dist.Normal(mean, 1.0).log_prob(data[:, None])
    message = transition[0].log() + emission[0]
    for row in emission[1:]:
        message = (message[:, None] + transition.log()).logsumexp(0) + row
    return message.logsumexp(0)


def test_the_density_of_a_hidden_markov_model_is_that_of_the_forward_algorithm() -> None:
    torch.manual_seed(0)
    data = torch.randn(4, 2, dtype=F64)
    density = density_from_pyro(hidden_markov, data)
    assert density.vectorized
    positions = density.initial(5)
    found = density.log_prob(positions) - density.base.log_prob(positions)  # type: ignore[union-attr]
    values = density.constrain(positions)
    expected = [
        sum(forward_algorithm(values["transition"][i], values["mean"][i], data[:, j]) for j in range(2))
        for i in range(5)
    ]
    torch.testing.assert_close(found, torch.stack(expected))  # type: ignore[arg-type]


def test_impossible_labels_have_no_gradient() -> None:
    """Sums of zeros are zero, and do not spoil the gradient of the others."""

    @config_enumerate
    def model() -> None:
        shift = pyro.sample("shift", dist.Normal(number(0.0), 1.0))
        first = pyro.sample("first", dist.Bernoulli(number(0.5)))
        second = pyro.sample("second", dist.Bernoulli(number(0.5)))
        pyro.factor("never", torch.where(first > 0.5, -torch.inf, 0.0) + 0 * second)
        pyro.sample("x", dist.Normal(shift + first + second, 1.0), obs=number(1.0))

    density = density_from_pyro(model)
    points = torch.tensor([[0.3], [-0.5]], dtype=F64, requires_grad=True)
    means = torch.stack([points[:, 0], points[:, 0] + 1])
    exact = (dist.Normal(means, 1.0).log_prob(number(1.0)) + number(0.25).log()).logsumexp(0)
    exact = exact + dist.Normal(number(0.0), 1.0).log_prob(points[:, 0])
    value, grad = density.value_and_grad(points.detach())
    torch.testing.assert_close(value, exact)
    torch.testing.assert_close(grad, torch.autograd.grad(exact.sum(), points)[0])


@pytest.mark.parametrize("nesting", [1, 2, 3])
def test_the_loss_may_count_on_more_plates_than_there_are(nesting: int) -> None:
    """Chains enumerate labels too, and leave the dimensions that the loss has set apart as they are."""
    guide = AutoHMC(mixture, base=AutoDiagonalNormal, num_hmc=1)
    assert TraceEnum_ELBO(max_plate_nesting=nesting).loss(mixture, guide, DATA) < 100


def test_what_is_observed_may_depend_on_latents() -> None:
    """Such values are no data, and are not warned about when they change."""

    @config_enumerate
    def model() -> None:
        rate = pyro.sample("rate", dist.Beta(number(2.0), 2.0))
        steps = [pyro.sample(f"step_{i}", dist.Bernoulli(rate)) for i in range(3)]
        pyro.sample("total", dist.Normal(number(0.0), 1.0), obs=rate + steps[0] + steps[1] + steps[2])

    guide = AutoHMC(model, base=AutoDiagonalNormal, num_hmc=1, num_particles=2)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), TraceEnum_ELBO(max_plate_nesting=0))
    for _ in range(4):
        svi.step()  # warnings are errors here


def plain(data: Tensor) -> None:
    mixture.__wrapped__(data)  # type: ignore[attr-defined]


def test_kernels_and_densities_sum_them_out_unasked() -> None:
    """As Pyro's kernels do: there is no need to mark them."""
    point = torch.tensor([[0.4]], dtype=F64)
    density = density_from_pyro(plain, DATA)
    torch.testing.assert_close(density.log_prob(point), log_joint_of_mixture(point[:, 0]))
    mcmc = MCMC(KernelAdapter(plain, HMC), num_samples=2, warmup_steps=2, disable_progbar=True)
    mcmc.run(DATA)
    assert set(mcmc.get_samples()) == {"gap"}


def test_dimensions_that_no_plate_declares_are_refused() -> None:
    """They would meet those along which labels are enumerated."""

    def unplated(data: Tensor) -> None:
        means = pyro.sample("means", dist.Normal(torch.arange(2.0), 1.0))
        with pyro.plate("data", len(data)):
            label = pyro.sample("label", dist.Categorical(torch.ones(2)))
            pyro.sample("x", dist.Normal(means[label], 1.0), obs=data)

    with pytest.raises(ValueError, match=r"means(.|\n)*to_event"):
        density_from_pyro(unplated, DATA.float())


def test_guides_refuse_those_that_are_not_marked() -> None:
    with pytest.raises(ValueError, match=r"discrete sample sites: 'label'.*config_enumerate"):
        SVI(plain, AutoHMC(plain), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(DATA)
