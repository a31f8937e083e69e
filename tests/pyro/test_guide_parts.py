"""AutoHMC as one of several guides, and for part of a model."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoGuideList
from torch import Tensor

from hmcvi.pyro import AutoHMC, density_from_pyro
from tests.support.problems import F64, perturb
from tests.support.pyro_models import eight_schools, log_weights, number
from tests.support.statistics import assert_evidence

DATA = torch.tensor([0.4, -0.9, 1.3], dtype=F64)
SIGHT = ["m", "seen"]  # the half of the model that the other guide is for


def two_halves() -> None:
    """m ~ N(0, 1) seen with noise 1; z_i ~ N(0, 1) in a plate, seen with noise 1."""
    m = pyro.sample("m", dist.Normal(number(0.0), 1.0))
    pyro.sample("seen", dist.Normal(m, 1.0), obs=number(0.7))
    with pyro.plate("data", 3):
        z = pyro.sample("z", dist.Normal(number(0.0), 1.0))
        pyro.sample("x", dist.Normal(z, 1.0), obs=DATA)


def log_evidence() -> Tensor:
    return dist.Normal(0.0, 2**0.5).log_prob(torch.cat([DATA, number(0.7)[None]])).sum()


def make_list() -> AutoGuideList:
    """HMC for the plate, a normal distribution for the rest, both wider than the posterior."""
    guide = AutoGuideList(two_halves)
    half = poutine.block(two_halves, hide=SIGHT)
    settings: dict[str, Any] = {"base": AutoDiagonalNormal, "chain": "hamiltonian", "hidden": (8,)}
    refined = AutoHMC(half, num_hmc=2, num_leapfrog=2, num_particles=1, **settings)
    guide.append(refined)
    guide.append(AutoDiagonalNormal(poutine.block(two_halves, expose=SIGHT)))
    guide()
    perturb(refined.chain, 0.05)
    with torch.no_grad():
        for part in (refined.base, guide[1]):
            part.scale_unconstrained.fill_(0.5)
    return guide


def test_a_list_of_guides_has_the_evidence_of_the_model() -> None:
    guide = make_list()
    assert {name: value.shape for name, value in guide().items()} == {"m": (), "z": (3,)}
    assert_evidence(log_weights(two_halves, guide, 40_000, 1), log_evidence())


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_list_of_guides_is_trained(vectorized: bool) -> None:
    guide = make_list()
    before = [parameter.detach().clone() for parameter in guide.parameters()]
    for elbo in (Trace_ELBO, RenyiELBO):
        svi = SVI(
            two_halves,
            guide,
            pyro.optim.Adam({"lr": 0.01}),
            elbo(num_particles=3, vectorize_particles=vectorized),
        )
        svi.step()
    assert all((new != old).any() for new, old in zip(guide.parameters(), before, strict=True))
    assert {name: value.shape for name, value in guide.median().items()} == {"m": (), "z": (3,)}
    low, high = guide.quantiles([0.1, 0.9])["z"]
    assert low.shape == (3,) and (low < high).all()


def test_hidden_sites_that_make_the_density_random_are_refused() -> None:
    hidden = poutine.block(eight_schools, hide=["mu"])
    for call in (lambda: AutoHMC(hidden)(), lambda: density_from_pyro(hidden)):
        with pytest.raises(ValueError, match=r"function of tau, eta, but it is random.*poutine.condition"):
            call()
    fixed = poutine.condition(eight_schools, data={"mu": number(4.0)})
    assert set(AutoHMC(fixed)()) == {"tau", "eta"}


def test_a_frozen_guide_draws_without_a_warning() -> None:
    guide = AutoHMC(two_halves, base=AutoDiagonalNormal, num_hmc=1, num_particles=2)
    guide()
    guide.requires_grad_(False)
    with torch.no_grad():
        guide()  # warnings are errors here
    assert all(not parameter.requires_grad for parameter in guide.parameters())
    assert guide.requires_grad_().training
