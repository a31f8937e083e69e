"""AutoHMC: its traces weigh what the chain weighs, whatever it starts from and whoever runs it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions.transforms import AffineAutoregressive
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoGuide,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)
from torch import Tensor

from hmcvi import Phase
from hmcvi.kernels import annealed_chain
from hmcvi.pyro import AutoHMC, density_from_pyro
from hmcvi.pyro.transport import pulled_back, standard_log_prob, transport
from tests.problems import F64, perturb
from tests.pyro.models import eight_schools, number
from tests.statistics import Z, assert_evidence, mean_and_error

BASES: dict[str, Callable[..., Any]] = {
    "diagonal": AutoDiagonalNormal,
    "full": AutoMultivariateNormal,
    "low-rank": functools.partial(AutoLowRankMultivariateNormal, rank=1),
    "flow": functools.partial(AutoIAFNormal, hidden_dim=[6], num_transforms=2),
}


@pytest.fixture(autouse=True)
def _fresh_parameters() -> Iterator[None]:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    pyro.clear_param_store()


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


def log_weights(model: Callable[..., Any], guide: AutoGuide, count: int, nesting: int, *args: Any) -> Tensor:
    """log p(x, z) − log q(z, everything else) of independent draws.  [count]"""
    particles = pyro.plate("particles", count, dim=-1 - nesting)
    with torch.no_grad():
        guide_trace = poutine.trace(particles(guide)).get_trace(*args)
        model_trace = poutine.trace(poutine.replay(particles(model), guide_trace)).get_trace(*args)
    total = torch.zeros(count, dtype=F64)
    for trace, sign in ((model_trace, 1), (guide_trace, -1)):
        trace.compute_log_prob()
        for site in trace.nodes.values():
            if site["type"] == "sample" and site["log_prob"].ndim:
                total += sign * site["log_prob"].reshape(count, -1).sum(-1)
    return total


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
    guide = wide(AutoHMC(tug, num_hmc=2, num_leapfrog=2, base=BASES[base], hidden=(8,), **settings))
    assert_evidence(log_weights(tug, guide, 40_000, 0), tug.log_evidence())


def test_a_trace_weighs_what_the_chain_weighs() -> None:
    """The same noise through the chain by hand, on the density of the model in the base's coordinates."""
    guide = wide(AutoHMC(eight_schools, num_hmc=2, num_leapfrog=3, accept="nn", hidden=(8,)))
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
    guide = AutoHMC(tug, num_hmc=0, base=base)
    guide()
    elbo = Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=0)
    losses = []
    for either in (guide, base):
        pyro.set_rng_seed(2)
        losses.append(elbo.loss(tug, either))
    assert losses[0] == pytest.approx(losses[1])


def test_annealed_chains_fit_in() -> None:
    tug = Tug()
    guide = wide(AutoHMC(tug, chain=annealed_chain(3, 0, num_steps=3, initial_step_size=0.3)))
    assert_evidence(log_weights(tug, guide, 20_000, 0), tug.log_evidence())


@pytest.mark.parametrize("accept", ["simple", "nn"])
def test_gradient_is_unbiased_although_coins_are_tossed(accept: str) -> None:
    """d/dθ E[log w] against differences of E[log w], θ the step size and the mean of the base."""

    def model() -> None:
        z = pyro.sample("z", dist.Normal(number(0.0), 1.0))
        pyro.sample("x", dist.Normal(z**2, 0.7), obs=number(1.0))

    guide = AutoHMC(model, num_hmc=1, num_leapfrog=1, accept=accept, hidden=(4,), initial_step_size=1.2)
    guide()
    perturb(guide.chain)
    with torch.no_grad():
        guide.base.scale_unconstrained.fill_(0.5)
    log_step = next(p for n, p in guide.chain.named_parameters() if n.endswith("log_step"))
    elbo = Trace_ELBO(num_particles=200, vectorize_particles=True, max_plate_nesting=0)

    def gradients() -> Tensor:
        loss = -elbo.differentiable_loss(model, guide)
        return torch.stack([g.sum() for g in torch.autograd.grad(loss, [log_step, guide.base.loc])])

    actual = torch.stack([gradients() for _ in range(100)])
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
