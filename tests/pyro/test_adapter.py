"""Kernels on Pyro models: the known posteriors, through Pyro's MCMC and all at once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC, Predictive
from pyro.infer.mcmc import StreamingMCMC
from pyro.ops.stats import effective_sample_size
from torch import Tensor

import hmcvi
from hmcvi.evidence import laplace
from hmcvi.flows import AdditiveLogRatio
from hmcvi.kernels import (
    HMC,
    Compose,
    DiscontinuousHMC,
    EllipticalSlice,
    Gibbs,
    IndependentMetropolis,
    LinearSlice,
    RandomWalkMetropolis,
)
from hmcvi.pyro import KernelAdapter, density_from_pyro, vectorized_mcmc
from hmcvi.pyro.factory import build_kernel
from tests.support.problems import F64
from tests.support.pyro_models import (
    CATEGORIES,
    COINS,
    GAUSSIAN,
    NORMALS,
    LogisticPosterior,
    beta_bernoulli,
    change_point,
    conjugate_gaussian,
    dirichlet_categorical,
    gamma_normal,
    logistic_data,
    logistic_regression,
    unknown_counts,
)
from tests.support.statistics import Z, assert_mean

COUNTS = torch.tensor([7.0, 5.0, 6.0, 8.0, 1.0, 2.0, 1.0, 3.0], dtype=F64)

LOGISTIC = logistic_data(15, 2)

# models, their arguments, the site to look at and its distribution
KNOWN: dict[str, tuple[Callable[..., None], tuple[Tensor, ...], str, Any]] = {
    "conjugate gaussian": (
        conjugate_gaussian,
        (GAUSSIAN,),
        "z",
        dist.Normal(GAUSSIAN.sum() / 6.25, 6.25**-0.5),
    ),
    "beta-bernoulli": (
        beta_bernoulli,
        (COINS,),
        "p",
        dist.Beta(1.1 + COINS.sum(0), 1.1 + (1 - COINS).sum(0)),
    ),
    "gamma-normal": (
        gamma_normal,
        (NORMALS,),
        "precision",
        dist.Gamma(torch.tensor([8.5, 9.5], dtype=F64), 1 + 0.5 * (NORMALS - 3).square().sum(0)),
    ),
    "dirichlet-categorical": (
        dirichlet_categorical,
        (CATEGORIES,),
        "p",
        dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0], dtype=F64) + torch.bincount(CATEGORIES)),
    ),
    "logistic regression": (logistic_regression, LOGISTIC, "coefs", LogisticPosterior(*LOGISTIC)),
}


def walk_and_slice(density: hmcvi.Density) -> Compose:
    return Compose(RandomWalkMetropolis(density, 0.8), LinearSlice(density, 2.0))


def independence(density: hmcvi.Density) -> IndependentMetropolis:
    """Draws from Laplace's approximation, made wider."""
    fit = laplace(density, torch.zeros(density.layout.dim, dtype=F64))
    return IndependentMetropolis(density, dist.MultivariateNormal(fit.mean, scale_tril=1.3 * fit.root))


def as_if_discontinuous(density: hmcvi.Density) -> DiscontinuousHMC:
    return DiscontinuousHMC(density, list(density.layout.shapes), step_size=0.3, num_steps=2)


def one_by_one(density: hmcvi.Density) -> Gibbs:
    return Gibbs([(slice(i, i + 1), LinearSlice(density, 2.0)) for i in range(density.layout.dim)])


KERNELS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "HMC": (HMC, {"step_size": 0.5, "num_steps": 3}),
    "HMC with persistence": (HMC, {"step_size": 0.5, "num_steps": 1, "persistence": 0.8}),
    "RandomWalkMetropolis": (RandomWalkMetropolis, {"step_size": 0.6}),
    "LinearSlice": (LinearSlice, {}),
    "EllipticalSlice": (EllipticalSlice, {}),
    "IndependentMetropolis": (independence, {}),
    "DiscontinuousHMC": (as_if_discontinuous, {}),
    "Compose": (walk_and_slice, {}),
    "Gibbs": (one_by_one, {}),
}


def assert_moments(chains: Tensor, distribution: Any) -> None:
    """chains: [chains, draws, *shape], whose means are independent from chain to chain."""
    assert_mean(chains.mean(1), distribution.mean)
    assert_mean((chains - distribution.mean).square().mean(1), distribution.variance)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", KNOWN)
def test_known_posteriors_are_kept(name: str, kernel: str) -> None:
    model, data, site, distribution = KNOWN[name]
    factory, settings = KERNELS[kernel]
    density = density_from_pyro(model, *data)
    sampler = build_kernel(factory, density, settings)
    exact = distribution.sample((500,))
    state = sampler.init(density.unconstrain({site: exact}))
    random, visited = torch.Generator().manual_seed(1), []
    for _ in range(6):
        state, _ = sampler.step(state, random)
        visited.append(density.constrain(state.position)[site])
    draws = torch.stack(visited, 1)
    assert_moments(draws, distribution)
    assert (draws[:, -1] != exact).double().mean() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_mcmc_of_pyro_finds_them(name: str) -> None:
    model, data, site, distribution = KNOWN[name]
    mcmc = MCMC(
        KernelAdapter(model, HMC, num_steps=4, jitter=0.5), 300, warmup_steps=100, disable_progbar=True
    )
    mcmc.run(*data)
    draws = mcmc.get_samples()[site]
    assert draws.shape == (300, *distribution.mean.shape)
    error = (draws.var(0) / effective_sample_size(draws[None])).sqrt()
    assert ((draws.mean(0) - distribution.mean).abs() <= Z * error).all()
    report = mcmc.diagnostics()
    assert report[site]["r_hat"].shape == distribution.mean.shape
    assert report["divergences"] == {"chain 0": []}
    assert 0.5 < report["acceptance rate"]["chain 0"] <= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")  # R-hat of short chains
def test_logistic_regression_agrees_with_hmcvi_sample() -> None:
    """The same posterior through the adapter, all chains at once, and `hmcvi.sample` itself."""
    data = logistic_data(100)
    samples = vectorized_mcmc(
        logistic_regression,
        HMC,
        *data,
        num_chains=50,
        num_samples=60,
        group_by_chain=True,
        seed=1,
        settings={"num_steps": 5},
    )["coefs"]
    assert samples.shape == (50, 60, 3)
    density = density_from_pyro(logistic_regression, *data)
    draws = hmcvi.sample(HMC(density, 0.1, 5), density.initial(50), 60, num_warmup=60, seed=2, progress=False)
    for moment in (lambda x: x, torch.square):
        assert_mean(moment(samples).mean(1) - moment(draws["coefs"]).mean(1), 0.0)
    mcmc = MCMC(
        KernelAdapter(logistic_regression, HMC, num_steps=5, jitter=0.5), 200, 80, disable_progbar=True
    )
    mcmc.run(*data)
    single = mcmc.get_samples()["coefs"]
    error = (single.var(0) / effective_sample_size(single[None])).sqrt()
    assert ((single.mean(0) - samples.mean((0, 1))).abs() <= Z * error).all()


def posterior_of_day() -> Tensor:
    """Both rates integrated out."""

    def log_marginal(counts: Tensor) -> Tensor:
        shape, rate = 2 + counts.sum(), 0.5 + len(counts)
        return torch.lgamma(shape) - shape * torch.as_tensor(rate, dtype=F64).log()

    days = [log_marginal(COUNTS[:day]) + log_marginal(COUNTS[day:]) for day in range(len(COUNTS))]
    return torch.stack(days).softmax(0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")
def test_integers_are_moved_by_discontinuous_hmc() -> None:
    samples = vectorized_mcmc(
        change_point,
        DiscontinuousHMC,
        COUNTS,
        num_chains=300,
        num_samples=30,
        warmup_steps=30,
        settings={"step_size": 0.3, "num_steps": 3},
        group_by_chain=True,
    )
    assert samples["day"].dtype == torch.int64
    shares = torch.nn.functional.one_hot(samples["day"], len(COUNTS)).double().mean(1)
    assert_mean(shares[:, 2:6], posterior_of_day()[2:6])


def test_mcmc_with_integers() -> None:
    kernel = KernelAdapter(change_point, DiscontinuousHMC, step_size=0.3, num_steps=2)
    mcmc = MCMC(kernel, 20, warmup_steps=10, disable_progbar=True)
    mcmc.run(COUNTS)
    samples = mcmc.get_samples()
    assert torch.equal(samples["day"], samples["day"].round())
    assert "r_hat" in mcmc.diagnostics()["day"]
    mcmc.summary()
    Predictive(change_point, samples)(COUNTS)
    counts = MCMC(KernelAdapter(unknown_counts, DiscontinuousHMC), 5, 5, disable_progbar=True)
    counts.run(COUNTS)
    assert counts.get_samples()["n"].shape == (5, len(COUNTS))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")  # chains of 200 draws
def test_two_chains_streaming_and_transforms() -> None:
    kernel = KernelAdapter(dirichlet_categorical, EllipticalSlice, transforms={"p": AdditiveLogRatio().inv})
    with (
        pytest.warns(UserWarning, match="available_cpu")
        if torch.multiprocessing.cpu_count() < 3
        else _quiet()
    ):
        mcmc = MCMC(kernel, 200, warmup_steps=5, num_chains=2, disable_progbar=True)
    mcmc.run(CATEGORIES)
    grouped = mcmc.get_samples(group_by_chain=True)["p"]
    assert grouped.shape == (2, 200, 3) and not torch.equal(grouped[0], grouped[1])
    streaming = StreamingMCMC(kernel, 200, warmup_steps=5, num_chains=2, disable_progbar=True)
    streaming.run(CATEGORIES)
    distribution = KNOWN["dirichlet-categorical"][3]
    means = [streaming.get_statistics()[(chain, "p")]["mean"] for chain in (0, 1)]
    assert all(torch.allclose(mean, distribution.mean, atol=0.15) for mean in means)
    assert "r_hat" in streaming.diagnostics()["p"]


class _quiet:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


def test_potential_and_initial_params() -> None:
    def potential(params: dict[str, Tensor]) -> Tensor:
        return 0.5 * (params["a"] - 1).square().sum() + 0.5 * params["b"].square()

    start = {"a": torch.zeros(2, dtype=F64), "b": torch.ones((), dtype=F64)}
    kernel = KernelAdapter(None, HMC, potential_fn=potential, num_steps=4)
    mcmc = MCMC(kernel, 400, warmup_steps=100, initial_params=start, disable_progbar=True)
    mcmc.run()
    draws = mcmc.get_samples()["a"]
    error = (draws.var(0) / effective_sample_size(draws[None])).sqrt()
    assert ((draws.mean(0) - 1).abs() <= Z * error).all()
    with pytest.raises(ValueError, match="initial parameters"):
        MCMC(kernel, 5, disable_progbar=True).run()


def test_goes_where_it_is_told() -> None:
    """The state it is given counts, not the one it remembers."""
    kernel = KernelAdapter(conjugate_gaussian, HMC, step_size=1e-6, num_steps=1)
    kernel.setup(0, GAUSSIAN)
    moved = kernel.sample({"z": torch.tensor(5.0, dtype=F64)})
    torch.testing.assert_close(moved["z"], torch.tensor(5.0, dtype=F64), atol=1e-3, rtol=0)
    again = kernel.sample(moved)
    torch.testing.assert_close(again["z"], moved["z"], atol=1e-3, rtol=0)
    assert set(kernel.logging()) == {"step size", "acc. prob"}


def test_travels_to_other_processes() -> None:
    kernel = KernelAdapter(conjugate_gaussian, HMC, num_steps=2)
    kernel.setup(5, GAUSSIAN)
    copy = pickle.loads(pickle.dumps(kernel))
    copy.setup(5, GAUSSIAN)
    assert set(copy.sample(copy.initial_params)) == {"z"}
    kernel.cleanup()
    assert kernel.initial_params is None and kernel.transforms is not None


@pytest.mark.slow
def test_chains_run_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them as it would alone."""
    monkeypatch.setattr(torch.multiprocessing, "cpu_count", lambda: 3)  # Pyro leaves one for itself
    draws = []
    for num_chains in (1, 2):
        pyro.set_rng_seed(0)
        kernel = KernelAdapter(conjugate_gaussian, HMC, num_steps=2)
        mcmc = MCMC(kernel, 20, 10, num_chains=num_chains, mp_context="spawn", disable_progbar=True)
        mcmc.run(GAUSSIAN)
        draws.append(mcmc.get_samples(group_by_chain=True)["z"])
    assert draws[1].shape == (2, 20)
    assert torch.equal(draws[1][0], draws[0][0])
    assert not torch.equal(draws[1][1], draws[1][0])
    assert set(mcmc.diagnostics()["acceptance rate"]) == {"chain 0", "chain 1"}


def test_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="Only one of"):
        KernelAdapter(None, HMC)
    with pytest.raises(ValueError, match=r"'count'.*DiscontinuousHMC"):
        KernelAdapter(lambda: pyro.sample("count", dist.Poisson(3.0)), HMC).setup(0)
    with pytest.raises(ValueError, match="no discrete sample sites"):
        KernelAdapter(conjugate_gaussian, DiscontinuousHMC).setup(0, GAUSSIAN)
    with pytest.raises(RuntimeError, match="set up before it samples: run it by MCMC"):
        KernelAdapter(conjugate_gaussian, HMC).sample({"z": torch.zeros(())})
    with pytest.raises(TypeError, match=r"kernel_factory must make a kernel of .*, got PyroDensity"):
        KernelAdapter(conjugate_gaussian, lambda density: density).setup(0, GAUSSIAN)
    for swapped in (HMC, HMC(hmcvi.Density(torch.sum), 0.1)):
        with pytest.raises(TypeError, match=r"the model comes first: KernelAdapter\(model, HMC"):
            KernelAdapter(swapped, conjugate_gaussian)
    with pytest.raises(TypeError, match=r"give a class such as HMC and its settings.*got HMC"):
        KernelAdapter(conjugate_gaussian, HMC(hmcvi.Density(torch.sum), 0.1))

    def subsampled() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 6, subsample_size=3) as index:
            pyro.sample("x", dist.Normal(z, 1.0), obs=GAUSSIAN[index])

    for run in (
        MCMC(KernelAdapter(subsampled, HMC), 5, disable_progbar=True).run,
        lambda: vectorized_mcmc(subsampled, HMC),
    ):
        with pytest.raises(NotImplementedError, match="subsample sites, found 'data': give it all the data"):
            run()
    with pytest.raises(ValueError, match=r"'count'.*DiscontinuousHMC"):
        vectorized_mcmc(lambda: pyro.sample("count", dist.Poisson(3.0)), HMC)
