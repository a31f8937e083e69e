"""Tempering kernels leave the joint distribution of z and the temperature as it is."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

import hmcvi
from hmcvi import Density
from hmcvi.evidence import (
    Continuous,
    EvidenceWarning,
    ExtendedDensity,
    Grid,
    Neighbours,
    Tempering,
    sigmoidal,
    simulated_tempering,
    tempered_evidence,
)
from hmcvi.evidence.bases import BaseDistribution
from hmcvi.evidence.ends import compared_with_base
from hmcvi.kernels import HMC, Kernel, LinearSlice, RandomWalkMetropolis
from tests.support.problems import F64
from tests.support.statistics import Z, assert_independent, assert_mean, assert_uniform
from tests.support.targets import normal_cdf


class Normals:
    """N(0, 1.5² I) → e^1.3 N(m, s² I) in two dimensions, with ζ = e: z | β is normal, p(β) a quadrature."""

    base_scale, loc, scale, log_z, log_zeta = 1.5, 0.4, 0.8, 1.3, 1.0
    nodes = torch.linspace(0, 1, 20_001, dtype=F64)

    def __init__(self) -> None:
        self.base = Independent(Normal(torch.zeros(2, dtype=F64), self.base_scale), 1)
        distribution = Normal(torch.tensor(self.loc, dtype=F64), self.scale, validate_args=False)
        base = Density(lambda z: Normal(0.0, self.base_scale, validate_args=False).log_prob(z).sum(-1))
        self.target = Density(lambda z: distribution.log_prob(z).sum(-1) + self.log_z, base=base)

    def given(self, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and scale of each coordinate of z | β."""
        precision = (1 - beta) / self.base_scale**2 + beta / self.scale**2
        return beta * self.loc / self.scale**2 / precision, precision.rsqrt()

    def log_marginal(self, beta: Tensor) -> Tensor:
        """log p(β) up to a constant: the integral of the bridge is that of its value at the mean."""
        mean, scale = self.given(beta)
        z = torch.stack([mean, mean], -1)
        bridge = self.target.bridge(beta).log_prob(z) - beta * self.log_zeta
        return bridge + 2 * scale.log()

    def cdf(self, beta: Tensor) -> Tensor:
        mass = self.log_marginal(self.nodes).exp()
        cumulative = torch.cat([mass.new_zeros(1), ((mass[1:] + mass[:-1]) / 2).cumsum(0)])
        place = (beta * (len(self.nodes) - 1)).long().clamp(max=len(self.nodes) - 2)
        share = beta * (len(self.nodes) - 1) - place
        return torch.lerp(cumulative[place], cumulative[place + 1], share) / cumulative[-1]

    def draw(self, beta: Tensor) -> Tensor:
        mean, scale = self.given(beta)
        return mean[:, None] + scale[:, None] * torch.randn(len(beta), 2, dtype=F64)

    def draw_beta(self, count: int) -> Tensor:
        u = torch.rand(count, dtype=F64)
        cdf = self.cdf(self.nodes)
        right = torch.searchsorted(cdf, u).clamp(1, len(cdf) - 1)
        share = (u - cdf[right - 1]) / (cdf[right] - cdf[right - 1])
        return torch.lerp(self.nodes[right - 1], self.nodes[right], share)

    def uniforms(self, z: Tensor, beta: Tensor) -> Tensor:
        mean, scale = self.given(beta)
        return normal_cdf((z - mean[:, None]) / scale[:, None])


NORMALS, BETAS = Normals(), sigmoidal(6)
INNER: dict[str, Callable[[Density], Kernel]] = {
    "HMC": lambda density: HMC(density, 1.3, 2),
    "persistent HMC": lambda density: HMC(density, 0.8, 1, persistence=0.7),
    "walk": lambda density: RandomWalkMetropolis(density, 1.2),
    "slice": lambda density: LinearSlice(density, 2.0),
}


def larger_when_hot(kernel: Kernel, beta: Tensor) -> Kernel:
    """A step size that depends on the temperature, which stays while z moves."""
    return kernel.replace(step_size=kernel.step_size * (1.4 - 0.6 * beta)[..., None])


def run(kernel: Kernel, position: Tensor, num_steps: int = 4) -> tuple[Tensor, Tensor]:
    state, generator = kernel.init(position), torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        state, info = kernel.step(state, generator)
    torch.testing.assert_close(state.log_prob, kernel.density.log_prob(state.position))
    if "delta" in info:
        torch.testing.assert_close(info["delta"], kernel.density.delta(state.position[..., :-1]))
    assert (state.position != position).any(-1).double().mean() > 0.9
    return state.position[..., :-1], state.position[..., -1]


@pytest.mark.parametrize("inner", INNER)
def test_gibbs_tempering_keeps_exact_draws(inner: str) -> None:
    torch.manual_seed(0)
    beta = NORMALS.draw_beta(20_000)
    step_sizes = larger_when_hot if inner in ("HMC", "walk") else (lambda kernel, beta: kernel)
    kernel = Tempering(INNER[inner](NORMALS.target), Continuous(), NORMALS.log_zeta, step_sizes)
    z, beta = run(kernel, torch.cat([NORMALS.draw(beta), beta[:, None]], -1))
    uniforms = torch.cat([NORMALS.uniforms(z, beta), NORMALS.cdf(beta)[:, None]], -1)
    assert_uniform(uniforms)
    assert_independent(uniforms)


def test_simulated_tempering_keeps_exact_draws() -> None:
    torch.manual_seed(0)
    share = NORMALS.log_marginal(BETAS).softmax(0)
    beta = BETAS[torch.multinomial(share, 20_000, replacement=True)]
    kernel = Tempering(INNER["HMC"](NORMALS.target), Grid(BETAS), NORMALS.log_zeta)
    z, beta = run(kernel, torch.cat([NORMALS.draw(beta), beta[:, None]], -1))
    counts = (beta[:, None] == BETAS).double()
    assert (counts.sum(1) == 1).all()
    error = (share * (1 - share) / 20_000).sqrt()
    assert ((counts.mean(0) - share).abs() < Z * error).all()
    assert_uniform(NORMALS.uniforms(z, beta))


def test_free_weights_change_how_often_not_where() -> None:
    """Temperatures have the probabilities p(β_k) e^{w_k}, and z given β is what it was."""
    torch.manual_seed(0)
    weights = torch.linspace(1.0, -1.0, len(BETAS), dtype=F64)
    share = (NORMALS.log_marginal(BETAS) + weights).softmax(0)
    beta = BETAS[torch.multinomial(share, 20_000, replacement=True)]
    grid = Grid(BETAS, weights)
    kernel = Tempering(INNER["HMC"](NORMALS.target), grid, NORMALS.log_zeta)
    z, beta = run(kernel, torch.cat([NORMALS.draw(beta), beta[:, None]], -1))
    error = (share * (1 - share) / 20_000).sqrt()
    assert (((beta[:, None] == BETAS).double().mean(0) - share).abs() < Z * error).all()
    assert_uniform(NORMALS.uniforms(z, beta))
    delta = kernel.density.delta(z)
    for log_end in (grid.log_ends(delta), grid.log_visits(beta)):  # both are unbiased for both ends
        ratio = math.exp(NORMALS.log_z - NORMALS.log_zeta)  # Z / ζ = E[w_1] / E[w_0]
        assert_mean(ratio * log_end[0].exp() - log_end[1].exp(), 0.0)


def test_weights_are_learned_until_all_temperatures_are_as_likely() -> None:
    torch.manual_seed(0)
    kernel = Tempering(INNER["HMC"](NORMALS.target), Grid(BETAS), NORMALS.log_zeta)
    beta = NORMALS.draw_beta(200)
    state = kernel.init(torch.cat([NORMALS.draw(beta), beta[:, None]], -1))
    for time in range(1, 301):
        state, info = kernel.step(state)
        kernel = kernel.replace(temperatures=kernel.temperatures.learned(info["delta"], time))
    share = (NORMALS.log_marginal(BETAS) + kernel.temperatures.log_weights).softmax(0)
    assert (share * len(BETAS) - 1).abs().max() < 0.1
    assert kernel.temperatures.log_weights[0] == 0


def test_ends_never_seen_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match="no draw is at β = 1, there is nothing to count"):
        simulated_tempering(
            NORMALS.base,
            Density(lambda z: -5e4 * (z - 30).square().sum(-1)),
            num_samples=10,
            num_warmup=0,
            num_temperatures=5,
            log_zeta=500.0,
            estimate="counts",
            progress=False,
        )
    for setting in ("weights", "estimate"):
        with pytest.raises(ValueError, match=f"{setting} must be one of"):
            simulated_tempering(NORMALS.base, NORMALS.target, **{setting: "many"})


def test_the_base_is_found_again() -> None:
    """E[z | β = 0] by the weights of the draws is the mean of the base, within its error."""
    evidence = simulated_tempering(
        NORMALS.base, NORMALS.target, 400, 16, 50, num_temperatures=10, progress=False
    )
    off = evidence.diagnostics["base_mean"] / evidence.diagnostics["base_mean_error"]
    assert off.shape == (2,) and off.abs().max() < Z


def test_chains_that_see_another_base_are_named() -> None:
    """Draws of N(0.3, 1) at all β, where the base is N(0, 1): said in a warning; of the base itself: not."""
    torch.manual_seed(0)
    draws, delta = torch.randn(2000, 4, 1, dtype=F64), 0.1 * torch.randn(2000, 4, dtype=F64)
    q = BaseDistribution(Independent(Normal(torch.zeros(1, dtype=F64), 1.0), 1))
    found = tempered_evidence(draws, delta, 0.0)
    assert compared_with_base(found, q) is found
    with pytest.warns(EvidenceWarning, match="do not have the mean of the base.*have not converged"):
        compared_with_base(tempered_evidence(draws + 0.3, delta, 0.0), q)


def test_hmc_on_the_extended_density_keeps_exact_draws() -> None:
    torch.manual_seed(0)
    density = ExtendedDensity(NORMALS.base, NORMALS.target, NORMALS.log_zeta)
    beta = NORMALS.draw_beta(20_000)
    position = torch.cat([NORMALS.draw(beta), beta.logit()[:, None]], -1)
    z, u = run(HMC(density, 0.9, 4), position)
    uniforms = torch.cat([NORMALS.uniforms(z, u.sigmoid()), NORMALS.cdf(u.sigmoid())[:, None]], -1)
    assert_uniform(uniforms)
    assert_independent(uniforms)


@pytest.mark.parametrize("delta", [-800.0, -30.0, -1.0, -1e-3, -1e-9, 0.0, 1e-9, 2e-3, 1.0, 30.0, 800.0])
def test_the_distribution_of_the_temperature(delta: float) -> None:
    """Draws by the inverse of the cumulative distribution, and both ends by their formulas."""
    torch.manual_seed(0)
    deltas, distribution = torch.full((20_000,), delta, dtype=F64), Continuous()
    beta = distribution.draw(deltas, None)
    assert ((beta >= 0) & (beta <= 1)).all()
    cdf = beta if abs(delta) < 1e-8 else torch.expm1(-deltas * beta) / torch.expm1(-deltas)
    if abs(delta) < 500:
        assert_uniform(cdf)
    log_w0, log_w1 = distribution.log_ends(deltas[:1])
    grid = torch.linspace(0, 1, 200_001, dtype=F64)
    log_norm = torch.logsumexp(-delta * grid, 0) - torch.tensor(200_001.0, dtype=F64).log()
    torch.testing.assert_close(log_w0 - log_w1, deltas[:1])
    if abs(delta) < 500:
        torch.testing.assert_close(log_w0[0], -log_norm, atol=1e-3, rtol=0.0)


def test_a_fine_grid_is_continuous() -> None:
    """p(β | z) at the ends of K + 1 equal steps, times K, tends to that of the continuous distribution."""
    delta = torch.tensor([-20.0, -0.3, 0.0, 2.0, 50.0], dtype=F64)
    grid = Grid(torch.linspace(0, 1, 50_001, dtype=F64))
    for fine, limit in zip(grid.log_ends(delta), Continuous().log_ends(delta), strict=True):
        torch.testing.assert_close(fine + torch.tensor(50_000.0, dtype=F64).log(), limit, atol=1e-2, rtol=0.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")
def test_runs_under_sample_and_goes_on() -> None:
    torch.manual_seed(0)
    kernel = Tempering(INNER["HMC"](NORMALS.target), Continuous(), NORMALS.log_zeta)
    init = torch.cat([NORMALS.base.sample((16,)), torch.rand(16, 1, dtype=F64)], -1)
    whole = hmcvi.sample(kernel, init, 200, num_warmup=20, progress=False)
    part = hmcvi.sample(kernel, init, 150, num_warmup=20, progress=False).resume(50, progress=False)
    assert torch.equal(whole.position, part.position)
    position, delta = whole.position[..., :-1].transpose(0, 1), whole.stats["delta"].T
    evidence = tempered_evidence(position, delta, NORMALS.log_zeta)
    assert (evidence.log_z - NORMALS.log_z).abs() < 4 * evidence.std_error < 0.5


def test_nuts_of_pyro_runs_the_extended_potential() -> None:
    from pyro.infer import MCMC, NUTS

    torch.manual_seed(0)
    density = ExtendedDensity(NORMALS.base, NORMALS.target, NORMALS.log_zeta)
    start = {"z": torch.zeros(2, dtype=F64), "u": torch.zeros((), dtype=F64)}
    mcmc = MCMC(
        NUTS(potential_fn=density.potential_fn),
        num_samples=200,
        warmup_steps=50,
        initial_params=start,
        disable_progbar=True,
    )
    mcmc.run()
    z = mcmc.get_samples()["z"][:, None]
    evidence = tempered_evidence(z, density.tempered.delta(z), NORMALS.log_zeta)
    assert (evidence.log_z - NORMALS.log_z).abs() < 4 * evidence.std_error < 1


def test_temperatures_outside_are_refused() -> None:
    kernel = Tempering(INNER["HMC"](NORMALS.target), Continuous())
    with pytest.raises(ValueError, match="must lie in"):
        kernel.init(torch.tensor([[0.0, 0.0, 1.2]], dtype=F64))
    with pytest.raises(ValueError, match="base"):
        Tempering(HMC(Density(lambda z: -z.square().sum(-1)), 0.1, 2), Continuous())


def test_extended_gradients_are_those_of_autograd() -> None:
    problem = Normals()
    extended = ExtendedDensity(problem.base, problem.target, torch.tensor([1.0, -0.5], dtype=F64))
    position = 3 * torch.randn(6, 2, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    expected = Density(extended.log_prob).value_and_grad(position)
    torch.testing.assert_close(extended.value_and_grad(position), expected)
    assert torch.autograd.gradcheck(extended.value_and_grad, position[0].clone().requires_grad_())


@pytest.mark.parametrize("count", [2, 3, 5])
def test_steps_to_neighbours_keep_the_temperatures_given_a_position(count: int) -> None:
    """Exact draws of β | z stay exact draws, with uneven weights; steps lead to neighbours alone."""
    torch.manual_seed(0)
    weights = torch.tensor([0.0, 0.8, -0.5, 0.3, 1.0], dtype=F64)[:count]
    grid = Neighbours(torch.linspace(0, 1, count, dtype=F64).square(), weights)
    delta = torch.full((40_000,), 0.9, dtype=F64)
    start = grid.draw(delta)
    end = grid.walk(start, delta)
    before, after = ((grid.betas - beta[:, None]).abs().argmin(-1) for beta in (start, end))
    assert (before - after).abs().max() == 1
    exact = grid.log_prob(delta[0]).exp()
    assert_mean((after[:, None] == torch.arange(count)).double(), exact)
    flow = torch.zeros(count, count, dtype=F64).index_put(
        (before, after), torch.ones_like(delta), accumulate=True
    )
    assert ((flow - flow.T).abs() < Z * (flow + flow.T + 1).sqrt()).all()  # detailed balance


def test_evidence_by_steps_to_neighbours() -> None:
    evidence = simulated_tempering(
        NORMALS.base,
        NORMALS.target,
        num_samples=500,
        num_temperatures=4,
        moves="neighbours",
        progress=False,
    )
    assert abs(float(evidence.log_z) - NORMALS.log_z) < Z * float(evidence.std_error)
    with pytest.raises(ValueError, match="moves must be one of all, neighbours, got 'neighbors'"):
        simulated_tempering(NORMALS.base, NORMALS.target, moves="neighbors")
