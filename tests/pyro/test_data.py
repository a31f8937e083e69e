"""Whose posterior a guide draws from: that of the data it was trained with, whatever it is called with."""

from __future__ import annotations

import copy
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor

from hmcvi.kernels import HMC, annealed_chain
from hmcvi.pyro import AmortizedHMC, AutoHMC, density_from_pyro, vectorized_mcmc
from tests.support.problems import F64
from tests.support.statistics import assert_mean

X = torch.linspace(-1, 1, 12, dtype=F64)
Y = 0.9 * X + 0.1 * torch.sin(7 * X)
NEW = torch.tensor([2.0, 3.0, 4.0], dtype=F64)


def regression(x: Tensor, y: Tensor | None = None) -> None:
    slope = pyro.sample("slope", dist.Normal(torch.zeros((), dtype=F64), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(slope * x, 0.5), obs=y)


PRECISION = 1 + X.square().sum() / 0.25
MEAN = (X * Y).sum() / 0.25 / PRECISION  # of the slope given the data


def at_the_posterior() -> AutoHMC:
    """A guide whose base is the posterior, so that trajectories along it keep it."""
    guide = AutoHMC(regression, num_hmc=1, num_leapfrog=8, partial=False, base=AutoMultivariateNormal)
    guide(X, Y)
    with torch.no_grad():
        guide.base.loc.fill_(MEAN)
        guide.base.scale_unconstrained.fill_(float(PRECISION) ** -0.5).expm1_().log_()
    return guide


@pytest.mark.parametrize(
    "args", [(NEW,), (NEW, None), (NEW, 10 * NEW), (X, Y)], ids=["x", "None", "y", "same"]
)
@pytest.mark.parametrize("parallel", [False, True])
def test_predictions_are_given_the_training_data(args: tuple[Any, ...], parallel: bool) -> None:
    guide = at_the_posterior()
    draws = Predictive(regression, guide=guide, num_samples=400, parallel=parallel)(*args)
    slope = draws["slope"].reshape(400, 1)
    assert_mean(slope, MEAN)
    assert_mean((slope - MEAN).square(), 1 / PRECISION)
    assert draws["y"].reshape(400, -1).shape[1] == len(args[0])


def test_so_are_draws_and_quantiles() -> None:
    """With arguments or without, as Pyro's guides take them."""
    guide = at_the_posterior()
    for args in ((), (NEW,), (NEW, 10 * NEW), (X, Y)):
        assert_mean(guide.sample_posterior(1000, *args)["slope"][:, None], MEAN)
        assert (guide.median(*args)["slope"] - MEAN).abs() < 0.2 * PRECISION**-0.5


def test_the_last_training_counts() -> None:
    guide = at_the_posterior()
    svi = SVI(regression, guide, pyro.optim.Adam({"lr": 0.0}), Trace_ELBO())
    with pytest.warns(UserWarning, match="the data are not those of the last call"):
        svi.step(X, -Y)
    svi.evaluate_loss(X, Y)  # is no training
    assert guide._training is not None and guide._training.call.args[1].equal(-Y)
    svi.step(X, Y)  # warned once
    assert guide._training.call.args == (X, Y)
    assert copy.deepcopy(guide)._training is guide._training


def test_a_guide_that_never_saw_data_does_not_predict() -> None:
    guide = AutoHMC(regression)
    with pytest.raises(RuntimeError, match=r"has seen none.*Call the guide with the training data first"):
        Predictive(regression, guide=guide, num_samples=3)(NEW)
    guide(X, Y)
    assert Predictive(regression, guide=guide, num_samples=3)(NEW)["y"].shape == (3, 3)


def test_data_that_the_model_has_lost_are_refused() -> None:
    """Data that are no arguments cannot be remembered."""
    data: list[Tensor | None] = [Y]
    guide = AutoHMC(lambda: regression(X, data[0]))
    guide()
    data[0] = None
    with pytest.raises(ValueError, match="site 'y' is neither observed nor one of the latents"):
        guide.sample_posterior(3)


def test_a_density_without_data_can_be_fitted() -> None:
    def banana() -> None:
        a = pyro.sample("a", dist.Normal(torch.zeros((), dtype=F64), 1.0))
        pyro.sample("b", dist.Normal(a**2, 1.0))

    guide = AutoHMC(banana, num_hmc=1, num_leapfrog=1)
    SVI(banana, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step()
    assert set(Predictive(banana, guide=guide, num_samples=3)()) >= {"a", "b"}


def local(x: Tensor, observe: bool = True) -> None:
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros((), dtype=F64), 1.0))
        pyro.sample("x", dist.Normal(z, 0.5), obs=x if observe else None)


def encoder(x: Tensor, observe: bool = True) -> Any:
    return dist.Normal(0.8 * x[:, None], 0.45).to_event(1)


def test_entries_have_their_own_data() -> None:
    """That of the call, which must be there."""
    guide = AmortizedHMC(local, encoder, 1, 2, hidden=(4,))
    with pytest.raises(RuntimeError, match="has seen none"), torch.no_grad():
        guide(X, observe=False)
    guide(X)
    draws = Predictive(local, guide=guide, num_samples=200)(NEW)["z"]
    assert ((draws.mean(0) - 0.8 * NEW).abs() < 0.3).all()
    with pytest.raises(ValueError, match=r"'x' is not observed in this call.*sample_posterior"):
        Predictive(local, guide=guide, num_samples=2)(NEW, observe=False)


def test_sites_that_changed_are_refused() -> None:
    def growing(x: Tensor, extra: bool = False) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros((), dtype=F64), 1.0))
            scale = pyro.sample("scale", dist.LogNormal(z, 1.0)) if extra else torch.ones_like(z)
            pyro.sample("x", dist.Normal(z, scale), obs=x)

    guide = AutoHMC(growing, num_hmc=1, num_leapfrog=1)
    guide(X)
    for args in ((NEW,), (X, True)):
        with pytest.raises(ValueError, match=r"made for the latent sites .* Make another guide"):
            guide(*args)
    known = poutine.condition(growing, data={"z": X})
    guide._held_model.value = known
    with pytest.raises(ValueError, match=r"made for the latent sites"):
        guide(X)
    entries = AmortizedHMC(growing, lambda x, extra=False: encoder(x), 1, 1, hidden=(4,))
    entries(X)
    with pytest.raises(ValueError, match=r"made for the latent sites \['z'\] and finds \['z', 'scale'\]"):
        entries(X, True)


def test_data_that_are_not_numbers_are_refused() -> None:
    broken = Y.clone()
    broken[3] = torch.nan
    with pytest.raises(ValueError, match=r"Encountered NaN in the data.*'y'"):
        AutoHMC(regression)(X, broken)
    for call in (density_from_pyro, lambda *args: vectorized_mcmc(args[0], HMC, *args[1:])):
        with pytest.raises(ValueError, match=r"Encountered NaN in the data.*'y'"):
            call(regression, X, broken)
    with pytest.raises(ValueError, match=r"Encountered NaN in the data.*'x'"):
        AmortizedHMC(local, encoder)(broken)
    masked = poutine.mask(regression, mask=~broken.isnan())
    AutoHMC(masked)(X, broken.nan_to_num())


def test_minibatches_are_refused() -> None:
    def minibatch(x: Tensor, y: Tensor) -> None:
        slope = pyro.sample("slope", dist.Normal(torch.zeros((), dtype=F64), 1.0))
        with pyro.plate("data", 100, subsample=x):
            pyro.sample("y", dist.Normal(slope * x, 0.5), obs=y)

    with pytest.raises(
        NotImplementedError, match=r"AutoHMC does not support model with subsample sites.*'data'"
    ):
        AutoHMC(minibatch)(X, Y)
    guide = AutoHMC(regression, num_hmc=1, num_leapfrog=1)
    guide(X[:6], Y[:6])
    with pytest.warns(UserWarning, match="without minibatches"):
        guide(X[6:], Y[6:])


@pytest.mark.parametrize("dim", [1, 3, 5])
def test_chains_of_another_dimension_are_refused(dim: int) -> None:
    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(z.sum(), 1.0), obs=torch.ones(()))

    with pytest.raises(ValueError, match="latents fill 4 dimensions: build it with dim=4"):
        AutoHMC(model, chain=annealed_chain(dim, 0, num_steps=2))()
