"""Guides side by side on a user's own model."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import config_enumerate
from pyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal
from torch import Tensor

from hmcvi.pyro import AutoHMC, compare
from tests.support.problems import F64
from tests.support.pyro_models import conjugate_gaussian, number

DATA = torch.tensor([0.5, 1.5, 1.0], dtype=F64)
GUIDES = {"diagonal": AutoDiagonalNormal, "AutoHMC": AutoHMC, "weighted": AutoMultivariateNormal}


def correlated() -> None:
    z = pyro.sample("z", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
    pyro.sample("x", dist.Normal(z.sum(-1), 0.1), obs=number(1.0))


def test_a_table_of_bounds_and_moments() -> None:
    pyro.param("mine", torch.tensor(3.0))
    state = torch.get_rng_state()
    table = compare(correlated, guides=GUIDES, budget=0.5, num_draws=200, num_particles={"weighted": 8})
    assert torch.equal(torch.get_rng_state(), state)
    assert list(pyro.get_param_store().keys()) == ["mine"]
    log_evidence = float(dist.Normal(number(0.0), 2.01**0.5).log_prob(number(1.0)))
    ours = table["AutoHMC"]
    assert ours.bound == pytest.approx(log_evidence, abs=0.02)  # a normal posterior is fitted exactly
    assert ours.bound > table["diagonal"].bound
    assert ours.means["z"].shape == ours.stddevs["z"].shape == (2,)
    assert ours.draws["z"].shape == (200, 2)
    assert all(fit.num_steps >= 1 and fit.cpu_seconds >= 0.5 for fit in table.values())
    assert all(math.isfinite(fit.std_error) for fit in table.values())
    lines = str(table).splitlines()
    assert len(lines) == 5 and "AutoHMC" in lines[1] and "higher is better" in lines[-1]


@config_enumerate
def two_groups(x: Tensor) -> None:
    gap = pyro.sample("gap", dist.HalfNormal(number(3.0)))
    with pyro.plate("data", len(x)):
        group = pyro.sample("group", dist.Categorical(torch.tensor([0.4, 0.6], dtype=F64)))
        pyro.sample("x", dist.Normal(gap * group, 1.0), obs=x)


def test_discrete_latents_are_summed_out() -> None:
    """With bounds of the marginal model, of all guides."""
    guides = {"mvn": AutoMultivariateNormal, "AutoHMC": AutoHMC}
    table = compare(two_groups, DATA, guides=guides, budget=0.5, num_draws=300)
    gap = torch.linspace(1e-4, 20, 4001, dtype=F64)[:, None]
    normal = dist.Normal(number(0.0), 1.0)
    likelihood = 0.4 * normal.log_prob(DATA).exp() + 0.6 * normal.log_prob(DATA - gap).exp()
    joint = likelihood.prod(-1) * dist.HalfNormal(number(3.0)).log_prob(gap[:, 0]).exp()
    log_evidence = float(torch.trapezoid(joint, gap[:, 0]).log())
    assert set(table) == set(guides) and set(table["mvn"].means) == {"gap"}
    assert table["AutoHMC"].bound == pytest.approx(log_evidence, abs=0.05)
    assert table["mvn"].bound < log_evidence + 5 * table["mvn"].std_error
    with pytest.raises(ValueError, match="group are summed out"):
        compare(two_groups, DATA, guides=guides, num_particles={"mvn": 3})


def test_arguments_of_the_model_and_what_is_wrong() -> None:
    table = compare(conjugate_gaussian, DATA, guides={"AutoHMC": AutoHMC}, budget=0.1, num_draws=30)
    assert float(table["AutoHMC"].means["z"]) == pytest.approx(12 / 13, abs=0.5)
    with pytest.raises(ValueError, match="budget must be positive"):
        compare(correlated, budget=0.0)
    with pytest.raises(ValueError, match="names 'mvn', which is not among the guides"):
        compare(correlated, guides=GUIDES, num_particles={"mvn": 3})


def test_a_guide_that_fails_is_left_out() -> None:
    def broken(model: object) -> AutoHMC:
        raise ValueError("not a number")

    with pytest.warns(UserWarning, match="broken failed and is left out: not a number"):
        table = compare(correlated, guides={"broken": broken, "AutoHMC": AutoHMC}, budget=0.1, num_draws=20)
    assert set(table) == {"AutoHMC"}
