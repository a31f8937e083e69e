"""Reparameterised simplex sites: the same distribution, in Pyro's own guides and kernels."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from torch.distributions import biject_to, constraints
from torch.distributions.transforms import StickBreakingTransform

from hmcvi.flows import AdditiveLogRatio, StickBreaking
from hmcvi.kernels import HMC
from hmcvi.pyro import AugmentedSoftmax, SimplexReparam, density_from_pyro
from tests.support.problems import F64
from tests.support.pyro_models import dirichlet_categorical
from tests.support.statistics import assert_mean

DATA = torch.tensor([0, 1, 1, 2, 2, 2, 0])
POSTERIOR = dist.Dirichlet(torch.tensor([3.0, 4.0, 6.0], dtype=F64))
REPARAMS = {
    "augmented softmax": AugmentedSoftmax(),
    "stick-breaking": SimplexReparam(StickBreaking()),
    "additive log ratio": SimplexReparam(AdditiveLogRatio()),
}
over_reparams = pytest.mark.parametrize("name", REPARAMS)


@over_reparams
def test_prior_draws_have_the_distribution_of_the_site(name: str) -> None:
    torch.manual_seed(0)

    def model() -> torch.Tensor:
        with pyro.plate("many", 4000):
            return pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0], dtype=F64)))

    trace = poutine.trace(poutine.reparam(model, {"p": REPARAMS[name]})).get_trace()
    p = trace.nodes["p"]["value"]
    assert p.shape == (4000, 3)
    distribution = dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0], dtype=F64))
    assert_mean(p, distribution.mean)
    assert_mean((p - distribution.mean).square(), distribution.variance)
    assert [n for n, s in trace.nodes.items() if s["type"] == "sample" and n.startswith("p_")]


@over_reparams
def test_posterior_is_kept_by_hmc(name: str) -> None:
    torch.manual_seed(1)
    density = density_from_pyro(poutine.reparam(dirichlet_categorical, {"p": REPARAMS[name]}), DATA)
    p = POSTERIOR.sample((2000,))
    if name == "augmented softmax":
        size = torch.tensor(3.0, dtype=F64).log() + torch.randn(2000, 1, dtype=F64)
        position = p.log() + size
    else:
        position = REPARAMS[name].transform.inv(p)
    kernel = HMC(density, 0.4, 4)
    state = kernel.init(position)
    for _ in range(5):
        state, _ = kernel.step(state)
    again = (
        state.position.softmax(-1)
        if name == "augmented softmax"
        else REPARAMS[name].transform(state.position)
    )
    assert_mean(again, POSTERIOR.mean)
    assert_mean((again - POSTERIOR.mean).square(), POSTERIOR.variance)


@over_reparams
def test_guides_of_pyro_take_it_and_its_initial_value(name: str) -> None:
    model = poutine.reparam(dirichlet_categorical, {"p": REPARAMS[name]})
    start = torch.tensor([0.2, 0.3, 0.5], dtype=F64)
    guide = AutoNormal(model, init_loc_fn=init_to_value(values={"p": start}), init_scale=1e-6)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-6}), Trace_ELBO())
    svi.step(DATA)
    (site,) = guide.median(DATA)
    y = guide.median(DATA)[site]
    p = y.softmax(-1) if name == "augmented softmax" else REPARAMS[name].transform(y)
    torch.testing.assert_close(p, start, atol=1e-3, rtol=0)


def test_says_what_is_wrong() -> None:
    def observed() -> None:
        pyro.sample("p", dist.Dirichlet(torch.ones(3)), obs=torch.ones(3) / 3)

    with pytest.raises(
        NotImplementedError, match=r"pyro.sample\('p',...\), AugmentedSoftmax does not support"
    ):
        poutine.reparam(observed, {"p": AugmentedSoftmax()})()
    with pytest.raises(ValueError, match="needs a distribution on the simplex"):
        poutine.reparam(lambda: pyro.sample("z", dist.Normal(0.0, 1.0)), {"z": AugmentedSoftmax()})()
    assert type(biject_to(constraints.simplex)) is StickBreakingTransform
