"""ABC posteriors against exact ones: a normal kernel is more noise, a ball an integral."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hmcvi
from hmcvi import Density, Phase
from hmcvi.kernels import HMC, EllipticalSlice, IntervalMetropolis, Kernel, RandomWalkMetropolis, abc_mcmc
from hmcvi.kernels.mcmc.retarget import conditional
from hmcvi.models import Generator, abc_density, abc_importance, abc_rejection
from hmcvi.models.inputs import Logistic, Normal
from tests.contracts.kernels import run
from tests.support.manifolds import LinearNormal, regression
from tests.support.problems import F64
from tests.support.statistics import assert_independent, assert_mean, assert_uniform
from tests.support.targets import normal_cdf

EPSILON = 0.6
OBSERVED = torch.tensor([0.5, -0.8, 1.2], dtype=F64)


def exact_draws(model: LinearNormal, count: int) -> Tensor:
    """u ~ π_ε(u): given y, normal with precision I + GᵀG/ε², G = [A, d].  [count, 5]"""
    jacobian = torch.cat([model.matrix, model.scales.diag()], -1)
    covariance = torch.linalg.inv(torch.eye(5, dtype=F64) + jacobian.T @ jacobian / EPSILON**2)
    mean = covariance @ jacobian.T @ (OBSERVED - model.shift) / EPSILON**2
    return mean + torch.randn(count, 5, dtype=F64) @ torch.linalg.cholesky(covariance).T


METHODS: dict[str, Callable[[Density, Generator], Kernel]] = {
    "HMC": lambda density, _: HMC(density, 0.6, 3),
    "elliptical slice": lambda density, _: EllipticalSlice(density),
    "ABC-MCMC": lambda density, generator: abc_mcmc(density, generator, 0.7),
    "ABC-MCMC, the noise walking": lambda density, generator: abc_mcmc(density, generator, 0.7, ["n"]),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_normal_kernel_is_more_noise(method: str) -> None:
    """Exact draws of the posterior with noise √(d² + ε²) stay exact draws."""
    torch.manual_seed(0)
    model = LinearNormal("elementwise", extra_noise=EPSILON)
    kernel = METHODS[method](abc_density(model.generator, OBSERVED, EPSILON), model.generator)
    start = exact_draws(model, 20_000)
    assert_uniform(model.uniforms(start[:, :2], OBSERVED))
    end, reports = run(kernel, kernel.init(start), 5)
    assert_uniform(uniforms := model.uniforms(end.position[:, :2], OBSERVED))
    assert_independent(uniforms)
    accepted = torch.stack([report["accepted"] for report in reports]).double().mean()
    assert accepted > 0.1 and (end.position != start).any(-1).double().mean() > 0.3


@pytest.mark.parametrize("kernel", ["gaussian", "uniform"])
def test_the_evidence_is_the_density_of_what_was_seen(kernel: str) -> None:
    """E_ρ[k_ε(y; g(u))] of x = z + n/2: N(y; 0, 5/4 + ε²), or the mass of the ball by its volume."""
    torch.manual_seed(0)
    generator = Generator({"z": Normal(1), "n": Normal(1)}, lambda v: v["z"] + 0.5 * v["n"])
    observed, scale = torch.tensor([0.7], dtype=F64), math.sqrt(1.25)
    inputs = generator.sample(100_000)
    density = abc_density(generator, observed, EPSILON, kernel)
    weights = (density.log_prob(inputs) - generator.density.log_prob(inputs)).exp()
    if kernel == "gaussian":
        wide = math.sqrt(1.25 + EPSILON**2)
        expected = math.exp(-0.5 * (0.7 / wide) ** 2) / (wide * math.sqrt(2 * math.pi))
    else:
        upper, lower = (normal_cdf((observed + side * EPSILON) / scale) for side in (1, -1))
        expected = float(upper - lower) / (2 * EPSILON)
    assert_mean(weights, expected)


def test_the_ball_has_the_volume_of_its_dimension() -> None:
    """π_ε integrates to the probability of the ball by its volume, (4/3) π ε³ in three dimensions."""
    model = LinearNormal()
    density = abc_density(model.generator, model.shift, EPSILON, "uniform")
    origin = torch.zeros(5, dtype=F64)
    log_kernel = density.log_prob(origin) - model.generator.density.log_prob(origin)
    torch.testing.assert_close(log_kernel.exp(), torch.tensor(3 / (4 * math.pi * EPSILON**3), dtype=F64))


@pytest.mark.parametrize("kernel", ["box", "epanechnikov"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_kernels_integrate_to_one(kernel: str, size: int) -> None:
    """By the midpoint rule on a grid of the cube around y; zero outside it."""
    generator = Generator({"x": Normal(size)}, lambda v: v["x"])
    observed = OBSERVED[:size]
    density = abc_density(generator, observed, EPSILON, kernel)
    count = 60
    middles = EPSILON * ((torch.arange(count, dtype=F64) + 0.5) * 2 / count - 1)
    grid = observed + torch.cartesian_prod(*[middles] * size).reshape(-1, size)
    kernel_at = (density.log_prob(grid) - generator.density.log_prob(grid)).exp()
    total = kernel_at.sum() * (2 * EPSILON / count) ** size
    torch.testing.assert_close(total, torch.tensor(1.0, dtype=F64), rtol=2e-3, atol=0)
    assert density.log_prob(observed + 1.01 * EPSILON) == -torch.inf


def test_gradient_of_the_epanechnikov_kernel() -> None:
    """∇log(1 − r²/ε²) within, and a chain that is beyond has none."""
    density = abc_density(Generator({"x": Normal(1)}, lambda v: v["x"]), OBSERVED[:1], 2.0, "epanechnikov")
    inside = torch.tensor([[0.1], [1.9]], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(density.log_prob, (inside,))
    value, grad = density.finite_value_and_grad(torch.tensor([[5.0], [0.5]], dtype=F64))
    assert value[0] == -torch.inf and grad.isfinite().all()


def test_weighted_draws_of_the_prior() -> None:
    """A normal kernel is more noise: the mean of z | y and the evidence are known."""
    generator = Generator({"z": Normal(1), "n": Normal(1)}, lambda v: v["z"] + 0.5 * v["n"])
    observed, variance = torch.tensor([0.7], dtype=F64), 1.25 + EPSILON**2
    result = abc_importance(generator, observed, EPSILON, 100_000, seed=3)
    weights = result.log_weight.exp()
    exact = math.exp(-0.5 * 0.49 / variance) / math.sqrt(2 * math.pi * variance)
    assert_mean(weights, exact)
    assert math.isclose(result.log_evidence, float(weights.mean().log()), rel_tol=1e-9)
    z = result.inputs[:, :1]
    assert_mean(weights[:, None] * (z - 0.7 / variance), 0.0)  # Σ w (z − E[z | y]) = 0
    torch.testing.assert_close(result.mean(z), (weights[:, None] * z).sum(0) / weights.sum())
    assert math.isclose(result.effective_samples, float(weights.sum() ** 2 / weights.square().sum()))


def test_weights_of_a_ball_are_rejection() -> None:
    ball = Ball()
    weighted = abc_importance(ball.generator, ball.observed, EPSILON, 20_000, "uniform", seed=4)
    count = len(weighted.inputs)
    kept = abc_rejection(ball.generator, ball.observed, EPSILON, count, seed=4, max_simulations=20_000)
    assert torch.equal(weighted.inputs, kept.inputs) and math.isclose(weighted.effective_samples, count)
    torch.testing.assert_close(weighted.mean(weighted.latent["doubled"]), kept.latent["doubled"].mean(0))


class Ball:
    """x = z + n/2, |x − y| < ε: z has the density N(z; 0, 1) (Φ(2(y + ε − z)) − Φ(2(y − ε − z)))."""

    observed = torch.tensor([0.7], dtype=F64)

    def __init__(self) -> None:
        self.generator = Generator(
            {"z": Normal(1), "n": Normal(1)},
            lambda v: v["z"] + 0.5 * v["n"],
            lambda v: {"doubled": 2 * v["z"]},
            structure="elementwise",
        )
        grid = torch.linspace(-6, 6, 4001, dtype=F64)
        inside = normal_cdf(2 * (self.observed + EPSILON - grid)) - normal_cdf(
            2 * (self.observed - EPSILON - grid)
        )
        mass = (torch.exp(-0.5 * grid**2) * inside).cumsum(0)
        self._grid, self._cdf = grid, mass / mass[-1]

    def uniform(self, z: Tensor) -> Tensor:
        right = torch.searchsorted(self._grid, z.contiguous()).clamp(1, len(self._grid) - 1)
        share = (z - self._grid[right - 1]) / (self._grid[right] - self._grid[right - 1])
        # the sum at a point is that of the cells up to half a cell beyond it
        lower = 0.5 * (self._cdf[(right - 2).clamp(min=0)] + self._cdf[right - 1])
        upper = 0.5 * (self._cdf[right - 1] + self._cdf[right])
        return lower + share * (upper - lower)


def test_rejection_draws_from_the_ball() -> None:
    ball = Ball()
    draws = abc_rejection(ball.generator, ball.observed, EPSILON, 20_000, seed=1)
    assert draws.inputs.shape == (20_000, 2) and (draws.distance < EPSILON).all()
    torch.testing.assert_close(
        draws.distance, (ball.generator.observed(draws.inputs) - ball.observed).abs()[:, 0]
    )
    assert torch.equal(draws.latent["doubled"], 2 * draws.inputs[:, :1])
    assert_uniform(ball.uniform(draws.inputs[:, 0]))
    scale = math.sqrt(1.25)
    upper, lower = (normal_cdf((ball.observed + side * EPSILON) / scale) for side in (1, -1))
    rate = float(upper - lower)
    error = math.sqrt(rate * (1 - rate) / draws.num_simulations)
    assert abs(draws.acceptance_rate - rate) < 4.5 * error
    again = abc_rejection(ball.generator, ball.observed, EPSILON, 50, seed=1)
    assert torch.equal(again.inputs, draws.inputs[:50])


@pytest.mark.parametrize("method", ["elliptical slice", "ABC-MCMC", "random walk"])
def test_kernels_without_gradient_keep_the_ball(method: str) -> None:
    ball = Ball()
    start = abc_rejection(ball.generator, ball.observed, EPSILON, 20_000, seed=2).inputs
    density = abc_density(ball.generator, ball.observed, EPSILON, "uniform")
    makers = {**METHODS, "random walk": lambda density, _: RandomWalkMetropolis(density, 0.8)}
    kernel = makers[method](density, ball.generator)
    end, _ = run(kernel, kernel.init(start), 4)
    assert end.log_prob.isfinite().all()
    assert_uniform(ball.uniform(end.position[:, 0]))
    assert (end.position != start).any(-1).double().mean() > 0.5


def test_summaries_are_what_is_compared() -> None:
    """Given the mean of the outputs alone, of LinearNormal with normal noise: again a normal posterior."""
    torch.manual_seed(0)
    model = LinearNormal()

    def summary(x: Tensor) -> Tensor:
        return x.mean(-1, keepdim=True)

    by_summary = abc_density(model.generator, OBSERVED, EPSILON, summary=summary)
    composed = abc_density(model.generator.then(summary), summary(OBSERVED), EPSILON)
    inputs = model.generator.sample(10)
    torch.testing.assert_close(by_summary.log_prob(inputs), composed.log_prob(inputs))
    draws = abc_rejection(model.generator, OBSERVED, 0.05, 100, summary=summary)
    assert (summary(model.generator.observed(draws.inputs)) - OBSERVED.mean()).abs().max() < 0.05


def test_gradient_of_the_normal_kernel() -> None:
    density = abc_density(regression(), OBSERVED, EPSILON)
    inputs = regression().sample(3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(density.log_prob, (inputs,))


def test_each_chain_has_its_own_observation() -> None:
    generator = regression()
    inputs = generator.sample(4, generator=torch.Generator().manual_seed(0))
    observed = OBSERVED + torch.arange(4, dtype=F64)[:, None]
    together = abc_density(generator, observed, EPSILON).log_prob(inputs)
    for index in range(4):
        alone = abc_density(generator, observed[index], EPSILON).log_prob(inputs[index])
        torch.testing.assert_close(together[index], alone)


def test_failed_simulations_have_no_density() -> None:
    generator = Generator({"z": Normal(1), "n": Normal(1)}, lambda v: v["z"].sqrt() + v["n"])
    inputs = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=F64)
    for kernel in ("gaussian", "uniform"):
        value = abc_density(generator, torch.ones(1), EPSILON, kernel).log_prob(inputs)
        assert value.isfinite().tolist() == [False, True]
    draws = abc_rejection(generator, torch.ones(1), EPSILON, 100)
    assert (draws.inputs[:, 0] >= 0).all()


@pytest.mark.filterwarnings("ignore::hmcvi.sampling.SamplingWarning")  # of a run this short
def test_inputs_keep_their_names() -> None:
    generator = regression()
    kernel = HMC(abc_density(generator, OBSERVED, EPSILON), 0.2, 3)
    start = generator.sample(8, generator=torch.Generator().manual_seed(0))
    draws = hmcvi.sample(kernel, start, 5, progress=False)
    assert draws["z"].shape == (8, 5, 2) and draws["n"].shape == (8, 5, 3)
    assert kernel.density.base is generator.density


def test_what_walks_and_what_is_drawn_afresh() -> None:
    """Rejected inputs stay; of accepted ones the walking are near and the others anywhere."""
    generator = Generator({"a": Normal(1), "n": Logistic(2), "b": Normal(1)}, lambda v: v["n"])
    density = Density(lambda u: 0 * u.sum(-1))
    kernel = abc_mcmc(density, generator, 1e-6, latent=["a", "b"])
    start = torch.zeros(500, 4, dtype=F64)
    state, info = kernel.step(kernel.init(start), torch.Generator().manual_seed(0))
    moved = state.position[info["accepted"]].abs()
    assert (moved[:, [0, 3]] < 1e-4).all() and (moved[:, [1, 2]] > 1e-4).double().mean() > 0.99
    assert torch.equal(state.position[~info["accepted"]], start[~info["accepted"]])
    bare, _ = kernel.step(Phase(start), torch.Generator().manual_seed(0))
    assert torch.equal(bare.position, state.position)


def test_bad_input_is_refused() -> None:
    generator = regression()
    for epsilon in (0.0, -1.0, math.nan, math.inf):
        for make in (abc_density, abc_importance, lambda *args: abc_rejection(*args, num_samples=1)):
            with pytest.raises(ValueError, match="epsilon must be positive"):
                make(generator, OBSERVED, epsilon)
    for make in (abc_density, abc_importance):
        with pytest.raises(ValueError, match="kernel must be one of gaussian, uniform, box, epanechnikov"):
            make(generator, OBSERVED, 1.0, kernel="cone")
    with pytest.raises(ValueError, match=r"3 outputs, observed has shape \[2\]"):
        abc_density(generator, OBSERVED[:2], 1.0)
    with pytest.raises(ValueError, match=r"summary must return vectors"):
        abc_density(generator, OBSERVED, 1.0, summary=lambda x: x.mean(-1))
    with pytest.raises(ValueError, match="must be finite"):
        abc_density(generator, OBSERVED, 1.0, summary=lambda x: x.log())
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        abc_rejection(generator, OBSERVED, 1.0, 0)
    for make in (abc_importance, abc_rejection):
        with pytest.raises(ValueError, match="one observation"):
            make(generator, OBSERVED[None], 1.0, 5)
    with pytest.raises(ValueError, match="num_simulations must be at least 1, got 0"):
        abc_importance(generator, OBSERVED, 1.0, 0)


def test_too_few_draws_are_noticed() -> None:
    generator = regression()
    with pytest.warns(RuntimeWarning, match=r"only \d+ of 1000 draws were accepted in 2000 simulations"):
        draws = abc_rejection(generator, OBSERVED, 1.0, 1000, max_simulations=2000)
    assert 0 < len(draws.inputs) < 1000 and draws.num_simulations == 2000
    with pytest.raises(ValueError, match=r"none of 50 simulations came within epsilon = 1e-06.*the nearest"):
        abc_rejection(generator, OBSERVED, 1e-6, 10, max_simulations=50)
    with pytest.raises(ValueError, match=r"none of 50 simulations came within epsilon = 1e-06"):
        abc_importance(generator, OBSERVED, 1e-6, 50, "epanechnikov")
    with pytest.warns(RuntimeWarning, match=r"100 simulations weigh as much as .* draws"):
        abc_importance(generator, OBSERVED, 0.01, 100)


def test_bad_blocks_are_refused() -> None:
    generator = regression()
    density = abc_density(generator, OBSERVED, 1.0)
    with pytest.raises(ValueError, match="no inputs called 'w', only z, n"):
        abc_mcmc(density, generator, 0.1, latent=["w"])
    for latent in ([], ["z", "n"]):
        with pytest.raises(ValueError, match="some be drawn afresh"):
            abc_mcmc(density, generator, 0.1, latent=latent)
    with pytest.raises(ValueError, match="step_size must be positive"):
        abc_mcmc(density, generator, 0.0)
    with pytest.raises(ValueError, match="cannot be a block of Gibbs"):
        conditional(abc_mcmc(density, generator, 0.1), density, torch.zeros(2, 5))
    with pytest.raises(ValueError, match="step_size must be positive"):
        abc_mcmc(density, generator, 0.1).replace(step_size=0.0)


def test_intervals_keep_the_box() -> None:
    """In one dimension a box is a ball, of which the distribution is known; coarse bisection is as exact."""
    ball = Ball()
    start = abc_rejection(ball.generator, ball.observed, EPSILON, 20_000, seed=3).inputs
    density = abc_density(ball.generator, ball.observed, EPSILON, "box")
    for num_bisections in (2, 16):
        kernel = IntervalMetropolis(density, ball.generator, ball.observed, EPSILON, 0.8, num_bisections)
        end, _ = run(kernel, kernel.init(start), 4)
        assert end.log_prob.isfinite().all()
        assert_uniform(ball.uniform(end.position[:, 0]))
        assert (end.position != start).any(-1).double().mean() > 0.5


def many(size: int = 40) -> tuple[Generator, Tensor]:
    """x_i = z + n_i, and data."""
    generator = Generator(
        {"z": Normal(), "n": Logistic(size)}, lambda v: v["z"][..., None] + v["n"], structure="elementwise"
    )
    return generator, generator.observed(generator.sample(generator=torch.Generator().manual_seed(0)))


def test_intervals_hit_many_outputs_at_once() -> None:
    """Forty outputs within 0.1: fresh simulations never do, intervals do for every accepted z."""
    generator, observed = many()
    density = abc_density(generator, observed, 0.1, "box")
    z = torch.zeros(200, 1, dtype=F64)
    start = torch.cat([z, observed - z], -1)
    fresh, intervals = (
        abc_mcmc(density, generator, 0.2),
        IntervalMetropolis(density, generator, observed, 0.1, 0.2),
    )
    rates = [
        torch.stack([r["accepted"] for r in run(kernel, kernel.init(start), 20)[1]]).double().mean()
        for kernel in (fresh, intervals)
    ]
    assert rates[0] == 0 and rates[1] > 0.3


def test_intervals_refuse_what_they_cannot_do() -> None:
    generator, observed = many()
    density = abc_density(generator, observed, 0.1, "box")
    with pytest.raises(ValueError, match=r"generator must be elementwise.*use abc_mcmc"):
        IntervalMetropolis(density, generator.then(lambda x: x), observed, 0.1, 0.2)
    with pytest.raises(ValueError, match=r"40 outputs, observed has shape \[3\]"):
        IntervalMetropolis(density, generator, OBSERVED, 0.1, 0.2)
    for setting in ("epsilon", "step_size"):
        with pytest.raises(ValueError, match=f"{setting} must be positive"):
            IntervalMetropolis(
                density, generator, observed, **{"epsilon": 0.1, "step_size": 0.2, setting: 0.0}
            )
    with pytest.raises(ValueError, match="num_bisections must be at least 1"):
        IntervalMetropolis(density, generator, observed, 0.1, 0.2, 0)
    falling = Generator(
        {"z": Normal(), "n": Normal(2)}, lambda v: v["z"][..., None] - v["n"], None, "elementwise"
    )
    kernel = IntervalMetropolis(density, falling, OBSERVED[:2], 0.1, 0.2)
    with pytest.raises(ValueError, match="outputs must increase with their own inputs"):
        kernel.init(torch.zeros(5, 3, dtype=F64))
    with pytest.raises(ValueError, match="cannot be a block of Gibbs"):
        conditional(kernel, density, torch.zeros(1))
