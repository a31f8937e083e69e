"""AutoHMC(model) and nothing else: what its defaults promise."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide.initialization import init_to_value

import hmcvi
from hmcvi.density import PulledBack
from hmcvi.kernels import HMC, annealed_chain, flow_hmc_chain
from hmcvi.pyro import AutoHMC, density_from_pyro
from hmcvi.pyro.base import BASES, LowRankAffine
from tests.support.problems import F64, perturb
from tests.support.pyro_models import EightSchoolsPosterior, eight_schools, log_weights, number
from tests.support.statistics import assert_evidence, mean_and_error

SCALES = torch.tensor([1e3, 1.0, 1e-3], dtype=F64)


def badly_scaled() -> None:
    """z_i ~ N(0, 1e8) seen once with noise s_i: the posterior has the units of s, and is far away."""
    with pyro.plate("units", 3):
        z = pyro.sample("z", dist.Normal(number(0.0), 1e4))
        pyro.sample("x", dist.Normal(z, SCALES), obs=100 * SCALES)


def log_evidence_of_units() -> torch.Tensor:
    return dist.Normal(number(0.0), (1e8 + SCALES.square()).sqrt()).log_prob(100 * SCALES).sum()


def curved() -> None:
    """x ~ N(0, 1), y ~ N(x²/2, 1), seen with noise 2: evidence by quadrature."""
    x = pyro.sample("x", dist.Normal(number(0.0), 1.0))
    y = pyro.sample("y", dist.Normal(x.square() / 2, 1.0))
    pyro.sample("seen", dist.Normal(y, 2.0), obs=number(1.5))


def log_evidence_of_curve() -> float:
    x = torch.linspace(-9, 9, 20_001, dtype=F64)
    log_joint = dist.Normal(number(0.0), 1.0).log_prob(x) + dist.Normal(x.square() / 2, 5**0.5).log_prob(
        number(1.5)
    )
    return float(torch.trapezoid(log_joint.exp(), x).log())


def bound_of(guide: AutoHMC, model: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return mean_and_error(log_weights(model, guide, count, nesting=1).detach())


def test_it_is_good_before_it_is_trained() -> None:
    """On a posterior far away and of three units, which is normal: exact."""
    guide = AutoHMC(badly_scaled)
    guide()
    bound, _ = bound_of(guide, badly_scaled, 200)
    assert float(log_evidence_of_units() - bound) == pytest.approx(0, abs=0.01)


def test_training_leaves_what_is_exact() -> None:
    guide = AutoHMC(badly_scaled)
    svi = SVI(badly_scaled, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    for _ in range(100):
        svi.step()
    bound, _ = bound_of(guide, badly_scaled, 200)
    assert float(log_evidence_of_units() - bound) == pytest.approx(0, abs=0.02)


@pytest.mark.slow
def test_one_line_closes_most_of_the_gap_of_a_normal_distribution() -> None:
    guide = AutoHMC(eight_schools)
    svi = SVI(eight_schools, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    for _ in range(30):
        svi.step()
    normal = AutoHMC(eight_schools, num_hmc=0, num_particles=1)
    with pyro.get_param_store().scope():
        normal()
        plain, _ = bound_of(normal, eight_schools, 20_000)
    refined, error = bound_of(guide, eight_schools, 1000)
    gap = EightSchoolsPosterior().log_evidence() - plain
    assert refined - plain > 0.6 * gap - 3 * error
    assert guide.pareto_k() < 1


@pytest.mark.parametrize("accept", [None, "simple"])
@pytest.mark.parametrize("num_particles", [1, 4])
def test_any_number_of_particles_weighs_the_evidence(accept: str | None, num_particles: int) -> None:
    guide = AutoHMC(curved, 2, accept=accept, chain="annealed", num_particles=num_particles)
    guide()
    perturb(guide.chain, 0.05)
    with torch.no_grad():
        guide.base.log_scale.fill_(0.5)
    assert_evidence(log_weights(curved, guide, 10_000, 0), log_evidence_of_curve())


def test_more_particles_have_a_higher_bound_that_stays_below() -> None:
    bounds = []
    for num_particles in (1, 16):
        pyro.clear_param_store()
        guide = AutoHMC(curved, num_hmc=1, num_particles=num_particles)
        guide()
        bounds.append(mean_and_error(log_weights(curved, guide, 4000, 0).detach()))
    (one, one_error), (many, many_error) = bounds
    assert many - one > 3 * (one_error**2 + many_error**2).sqrt()
    assert many - 3 * many_error < log_evidence_of_curve()


def test_gradients_are_those_of_the_importance_weighted_bound() -> None:
    """Of the base's mean and the step size, against differences with the same random numbers."""
    guide = AutoHMC(curved, num_hmc=2, num_particles=8)
    guide()
    perturb(guide.chain, 0.05)
    log_step = next(p for n, p in guide.chain.named_parameters() if n.endswith("log_step"))
    elbo = Trace_ELBO(num_particles=50, vectorize_particles=True, max_plate_nesting=0)

    def loss() -> torch.Tensor:
        pyro.set_rng_seed(1)
        return elbo.differentiable_loss(curved, guide)

    parameters = [log_step, guide.base.loc]
    gradients = torch.autograd.grad(loss(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        ends = []
        for shift in (1e-5, -1e-5):
            with torch.no_grad():
                parameter.add_(shift)
                ends.append(loss())
                parameter.sub_(shift)
        assert float(gradient.sum()) == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("base", BASES)
def test_bases_by_name_are_trained_and_weigh_the_evidence(base: str) -> None:
    guide = AutoHMC(curved, num_hmc=1, base=base, num_particles=4)
    svi = SVI(curved, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    before = [parameter.detach().clone() for parameter in (svi.step(), *guide.base.parameters())[1:]]
    svi.step()
    moved = [bool((new != old).any()) for old, new in zip(before, guide.base.parameters(), strict=True)]
    assert sum(moved) >= len(moved) - 3  # the fit stays; first layers of a flow may not move yet
    with torch.no_grad():
        guide.base.root.mul_(1.2)
    assert_evidence(log_weights(curved, guide, 10_000, 0), log_evidence_of_curve())


def test_low_rank_transport() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(4, dtype=F64, generator=generator) for _ in range(2)]
    transform = LowRankAffine(parts[0], parts[1].exp(), torch.randn(4, 2, dtype=F64, generator=generator))
    x = torch.randn(3, 4, dtype=F64, generator=generator)
    torch.testing.assert_close(transform.inv(transform(x)), x)
    jacobian = torch.autograd.functional.jacobian(transform, x[0])
    log_det = transform.log_abs_det_jacobian(x, transform(x))
    torch.testing.assert_close(log_det, torch.linalg.slogdet(jacobian)[1].expand(3))


def test_large_data_have_few_particles() -> None:
    def model(x: torch.Tensor) -> None:
        z = pyro.sample("z", dist.Normal(number(0.0), 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    for count, expected in ((100, 64), (20_000, 3)):
        pyro.clear_param_store()
        guide = AutoHMC(model)
        with poutine.trace() as trace:
            guide(torch.zeros(count, dtype=F64))
        noise = next(site["value"] for name, site in trace.trace.nodes.items() if name.endswith("noise"))
        assert noise.shape == (expected, 1)


def test_many_latents_have_a_low_rank_base() -> None:
    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(400, dtype=F64), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(z, 0.1).to_event(1), obs=torch.ones(400, dtype=F64))

    guide = AutoHMC(model)
    guide()
    assert type(guide.base).__name__ == "AutoFittedLowRankNormal"
    assert sum(parameter.numel() for parameter in guide.base.parameters()) < 400 * 20


@pytest.mark.parametrize(
    "chain",
    ["annealed", "ldvi", "hamiltonian", functools.partial(annealed_chain, num_steps=3)],
    ids=["annealed", "ldvi", "hamiltonian", "builder"],
)
def test_chains_by_name_or_builder(chain: Any) -> None:
    guide = AutoHMC(curved, chain=chain, num_particles=2)
    svi = SVI(curved, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert svi.step() > -log_evidence_of_curve() - 5
    again = pickle.loads(pickle.dumps(guide))
    assert again.sample_posterior(2)["y"].shape == (2,)


def test_where_the_fit_begins() -> None:
    """At init_loc_fn if it is given: of two modes it finds the one it is told."""

    def two_modes() -> None:
        z = pyro.sample("z", dist.Normal(number(0.0), 10.0))
        pyro.sample("x", dist.Normal(z.square(), 1.0), obs=number(25.0))

    for sign in (-1.0, 1.0):
        pyro.clear_param_store()
        start = init_to_value(values={"z": number(4.0 * sign)})
        guide = AutoHMC(two_modes, init_loc_fn=start, init_scale=0.2)
        guide()
        assert float(guide.base.centre.detach()) == pytest.approx(5 * sign, abs=0.2)


def test_posterior_and_transport() -> None:
    guide = AutoHMC(curved)
    guide()
    posterior = guide.get_posterior()
    assert posterior.sample((3,)).shape == (3, 2) and posterior.sample().shape == (2,)
    with pytest.raises(NotImplementedError, match="no density in closed form"):
        posterior.log_prob(torch.zeros(2))
    transform = guide.transport()
    e = torch.randn(4, 2, dtype=F64)
    torch.testing.assert_close(transform.inv(transform(e)), e)
    density = PulledBack(density_from_pyro(curved), transform)  # neural transport, for any kernel
    draws = hmcvi.sample(HMC(density, 0.5, 3), torch.randn(2, 2, dtype=F64), 3, progress=False, check=False)
    assert draws.position.shape == (2, 3, 2)


def test_setup_leaves_the_global_generator_alone_and_repeats() -> None:
    fits = []
    for seed in (0, 1):
        pyro.clear_param_store()
        guide = AutoHMC(curved, init_loc_fn=init_to_value(values={"x": number(0.1), "y": number(0.1)}))
        pyro.set_rng_seed(seed)
        guide()
        fits.append(guide.base.centre.detach().clone())
    assert torch.equal(*fits)


def impossible() -> None:
    z = pyro.sample("z", dist.Uniform(number(0.0), 1.0))
    pyro.factor("never", torch.where(z > 2, 0.0, -torch.inf))


def test_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"base must be one of .*got 'mvm'; did you mean 'mvn'\?"):
        AutoHMC(curved, base="mvm")
    with pytest.raises(ValueError, match=r"got 'anealed'; did you mean 'annealed'\?"):
        AutoHMC(curved, chain="anealed")
    with pytest.raises(
        TypeError, match="function of dim and context_dim alone: give num_flows, num_hmc, num_leapfrog"
    ):
        AutoHMC(curved, chain=flow_hmc_chain)
    with pytest.raises(TypeError, match="chain must be a name, a chain or a function"):
        AutoHMC(curved, chain=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="accept='nn' belongs to chain='hamiltonian'"):
        AutoHMC(curved, chain="annealed", accept="nn")
    with pytest.raises(ValueError, match="num_particles must be at least 1"):
        AutoHMC(curved, num_particles=0)
    with pytest.raises(ValueError, match="init_scale must be positive"):
        AutoHMC(curved, init_scale=-1.0)
    with pytest.raises(ValueError, match="whose latents fill 2 dimensions"):
        AutoHMC(curved, chain=annealed_chain(3, 0, num_steps=2).double())()
    with pytest.raises(ValueError, match="give them to the base itself"):
        AutoHMC(curved, base=BASES["mvn"], init_scale=0.5)
    pyro.clear_param_store()
    for start in (None, init_to_value(values={"z": number(0.5)})):
        with pytest.raises(ValueError, match="cannot find valid initial params: log p is not finite at"):
            AutoHMC(impossible, init_loc_fn=start)()
    with pytest.raises(ValueError, match="it needs two or more"):
        AutoHMC(lambda: pyro.sample("z", dist.Normal(0.0, 1.0)), base="iaf")()
