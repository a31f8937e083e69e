"""Densities of Pyro models: those of Pyro's own potential, one by one or all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor

import hmcvi
from hmcvi.flows import AdditiveLogRatio, StickBreaking
from hmcvi.kernels import HMC
from hmcvi.pyro import density_from_pyro
from tests.support.problems import F64
from tests.support.pyro_models import (
    CorrelatedGaussian,
    banana,
    beta_bernoulli,
    change_point,
    conjugate_gaussian,
    dirichlet_categorical,
    eight_schools,
    gamma_normal,
    logistic_data,
    logistic_regression,
    sparse_logistic,
    unknown_counts,
)
from tests.support.statistics import assert_mean

COUNTS = torch.tensor([5.0, 4.0, 6.0, 1.0, 0.0, 2.0], dtype=F64)
MODELS: dict[str, tuple[Callable[..., None], tuple[Tensor, ...]]] = {
    "conjugate gaussian": (conjugate_gaussian, (torch.tensor([1.0, 2.0, 0.5], dtype=F64),)),
    "beta-bernoulli": (beta_bernoulli, (torch.bernoulli(torch.full((10, 3), 0.4, dtype=F64)),)),
    "gamma-normal": (gamma_normal, (torch.randn(20, 2, dtype=F64),)),
    "dirichlet-categorical": (dirichlet_categorical, (torch.tensor([0, 1, 1, 2]),)),
    "logistic regression": (logistic_regression, logistic_data(20)),
    "eight schools": (eight_schools, ()),
    "correlated gaussian": (CorrelatedGaussian(), ()),
    "banana": (banana, ()),
    "sparse logistic": (sparse_logistic, logistic_data(20)),
}
over_models = pytest.mark.parametrize("name", MODELS)


@over_models
def test_is_minus_the_potential_of_pyro(name: str) -> None:
    model, args = MODELS[name]
    torch.manual_seed(0)
    _, potential, *_ = initialize_model(model, args)
    density = density_from_pyro(model, *args)
    position = density.initial(5)
    expected = -torch.stack([potential(density.layout.unflatten(z)) for z in position])
    assert density.vectorized
    torch.testing.assert_close(density.log_prob(position), expected)
    torch.testing.assert_close(density.log_prob(position[0]), expected[0])
    torch.testing.assert_close(density.log_prob(position[:4].reshape(2, 2, -1)), expected[:4].reshape(2, 2))


@over_models
def test_gradients_are_right_and_differentiable(name: str) -> None:
    model, args = MODELS[name]
    torch.manual_seed(1)
    density = density_from_pyro(model, *args)
    position = density.initial(2).requires_grad_()
    assert torch.autograd.gradcheck(density.log_prob, position)
    assert torch.autograd.gradcheck(lambda z: density.value_and_grad(z)[1], position)


@over_models
def test_constrain_and_back(name: str) -> None:
    model, args = MODELS[name]
    torch.manual_seed(2)
    density = density_from_pyro(model, *args)
    position = density.initial(6).reshape(2, 3, -1)
    values = density.constrain(position)
    torch.testing.assert_close(density.unconstrain(values), position)
    trace = pyro.poutine.trace(model).get_trace(*args)
    for site, value in values.items():
        assert value.shape == (2, 3, *trace.nodes[site]["value"].shape)
        assert trace.nodes[site]["fn"].support.check(value).all()


def test_base_is_the_prior() -> None:
    density = density_from_pyro(eight_schools)
    position = density.initial(3)
    likelihood = [
        pyro.poutine.trace(pyro.poutine.condition(eight_schools, values)).get_trace().nodes["obs"]
        for values in ({n: v[i] for n, v in density.constrain(position).items()} for i in range(3))
    ]
    expected = torch.stack([site["fn"].log_prob(site["value"]).sum() for site in likelihood])
    torch.testing.assert_close(density.log_prob(position) - density.base.log_prob(position), expected)
    middle = density.bridge(0.5).log_prob(position)
    torch.testing.assert_close(middle, density.base.log_prob(position) + 0.5 * expected)


@pytest.mark.parametrize("transform", [StickBreaking(), AdditiveLogRatio()], ids=lambda t: type(t).__name__)
def test_a_transform_of_one_site(transform: Any) -> None:
    """The same posterior in other coordinates."""
    data = torch.tensor([0, 1, 1, 2])
    density = density_from_pyro(dirichlet_categorical, data, transforms={"p": transform.inv})
    torch.manual_seed(3)
    posterior = dist.Dirichlet(torch.tensor([2.0, 4.0, 4.0], dtype=F64))
    p = posterior.sample((5,))
    y = density.unconstrain({"p": p})
    torch.testing.assert_close(y, transform.inv(p))
    expected = posterior.log_prob(p) + transform.log_abs_det_jacobian(y, p)
    torch.testing.assert_close(density.log_prob(y) - density.log_prob(y)[:1], expected - expected[:1])


def test_a_model_with_branches_is_evaluated_one_by_one() -> None:
    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros((), dtype=F64), 1.0))
        scale = 1.0 if z > 0 else 2.0
        pyro.sample("x", dist.Normal(z, scale), obs=torch.ones((), dtype=F64))

    with pytest.warns(UserWarning, match="does not vectorise"):
        density = density_from_pyro(model)
    position = torch.tensor([[-1.0], [1.0]], dtype=F64)
    normal = torch.distributions.Normal
    expected = normal(0, 1).log_prob(position[:, 0]) + normal(
        position[:, 0], torch.tensor([2.0, 1.0])
    ).log_prob(torch.ones((), dtype=F64))
    torch.testing.assert_close(density.log_prob(position), expected)


def test_integers_are_embedded() -> None:
    density = density_from_pyro(change_point, COUNTS, embed=True)
    values = {
        "early": torch.tensor([3.0, 5.0], dtype=F64),
        "late": torch.tensor([2.0, 1.0], dtype=F64),
        "day": torch.tensor([0, 3]),
    }
    position = density.unconstrain(values)
    again = density.constrain(position)
    assert again["day"].dtype == torch.int64 and again["day"].tolist() == [0, 3]
    assert density.discontinuous.tolist() == [False, False, True]
    log_joint = [
        pyro.poutine.trace(pyro.poutine.condition(change_point, {n: v[i] for n, v in values.items()}))
        .get_trace(COUNTS)
        .log_prob_sum()
        for i in range(2)
    ]
    log_det = values["early"].log() + values["late"].log()
    torch.testing.assert_close(density.log_prob(position), torch.stack(log_joint) + log_det)
    counts = density_from_pyro(unknown_counts, COUNTS, embed=True)
    assert counts.constrain(counts.initial(3))["n"].dtype == F64


@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")  # runs of ten draws
def test_kernels_run_on_it() -> None:
    """HMC keeps the conjugate posterior."""
    data = torch.tensor([1.0, 2.0, 0.5, 1.2], dtype=F64)
    density = density_from_pyro(conjugate_gaussian, data)
    precision = 1 / 4 + len(data)
    torch.manual_seed(4)
    init = data.sum() / precision + precision**-0.5 * torch.randn(400, 1, dtype=F64)
    draws = hmcvi.sample(HMC(density, 0.6, 3), init, num_samples=10, seed=1, progress=False)
    assert_mean(draws["z"].mean(1), data.sum() / precision)
    assert_mean((draws["z"] - data.sum() / precision).square().mean(1), 1 / precision)


def test_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"discrete sample sites: 'count'.*DiscontinuousHMC"):
        density_from_pyro(lambda: pyro.sample("count", dist.Poisson(3.0)))  # it cannot be summed out
    with pytest.raises(RuntimeError, match="found no latent variables"):
        density_from_pyro(lambda: pyro.sample("x", dist.Normal(0.0, 1.0), obs=torch.ones(())))
    with pytest.raises(ValueError, match="no latent site 'q'"):
        density_from_pyro(banana, transforms={"q": StickBreaking().inv})
    with pytest.raises(ValueError, match="no value of b"):
        density_from_pyro(banana).unconstrain({"a": torch.zeros(())})

    def subsampled() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 10, subsample_size=5) as index:
            pyro.sample("x", dist.Normal(z, 1.0), obs=torch.ones(10)[index])

    with pytest.raises(NotImplementedError, match="subsample sites, found 'data'"):
        density_from_pyro(subsampled)

    def impossible() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.factor("never", z.new_tensor(-torch.inf))

    with pytest.raises(ValueError, match="cannot find valid initial params"):
        density_from_pyro(impossible).initial(1)


def test_summaries_have_the_units_of_the_model() -> None:
    """A user reads the scale of a model under its name, not the logarithm that was sampled."""

    def model() -> None:
        pyro.sample("scale", dist.LogNormal(torch.zeros(2, dtype=F64), 1.0).to_event(1))

    density = density_from_pyro(model)
    draws = hmcvi.sample(HMC(density, 0.6, 3), torch.randn(4, 2, dtype=F64), num_samples=20, check=False)
    torch.testing.assert_close(draws.values["scale"], draws["scale"].exp())
    shown = torch.as_tensor(draws.to_arviz().posterior["scale"].values)
    torch.testing.assert_close(shown, draws.values["scale"])


def test_a_log_density_that_is_random_at_some_points_only_is_refused() -> None:
    """Where one label has nearly all the probability it repeats, which says nothing about other places."""

    def model() -> None:
        weight = pyro.sample("weight", dist.Beta(0.05, 0.05))
        label = pyro.sample("label", dist.Bernoulli(weight))
        pyro.sample("x", dist.Normal(3 * label, 1.0), obs=torch.zeros(()))

    for seed in range(5):
        pyro.set_rng_seed(seed)
        with pytest.raises(ValueError, match="it is random"):
            density_from_pyro(poutine.block(model, hide=["label"]))


def test_a_site_may_have_no_coordinates() -> None:
    """A simplex of one entry is a point."""

    def model() -> None:
        pyro.sample("share", dist.Dirichlet(torch.ones(1)))
        pyro.sample("z", dist.Normal(0.0, 1.0))

    density = density_from_pyro(model)
    assert density.log_prob(torch.zeros(3, 1)).shape == (3,)
    assert density.constrain(torch.zeros(3, 1))["share"].tolist() == [[1.0]] * 3
