"""Discontinuous Hamiltonian Monte Carlo keeps densities with jumps and integers, and says what it needs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hmcvi import Density, Phase
from hmcvi.adaptation import tuning
from hmcvi.kernels import CholeskyMetric, Counts, DiagonalMetric, DiscontinuousHMC, EmbeddedDensity, Metric
from hmcvi.kernels.mcmc.crossing import DiscontinuousSystem
from tests.support.jumps import LARGE, MIXED, PURE, THREE, CountsAndClasses, Staircase
from tests.support.problems import F64, Mixture
from tests.support.statistics import assert_mean, assert_uniform

Problem = Staircase | CountsAndClasses
MASSES = torch.tensor([1.7, 0.6], dtype=F64)


def kernel_for(
    problem: Problem, step_size: float, num_steps: int, metric: Metric | None = None
) -> DiscontinuousHMC:
    return DiscontinuousHMC(problem.density, problem.discontinuous, step_size, num_steps, metric)


def run(
    kernel: DiscontinuousHMC, position: Tensor, count: int, seed: int = 1000
) -> tuple[Tensor, list[dict]]:
    generator, state, reports = torch.Generator().manual_seed(seed), kernel.init(position), []
    for _ in range(count):
        state, info = kernel.step(state, generator)
        reports.append(info)
    return state.position, reports


@pytest.mark.parametrize("metric", [None, DiagonalMetric(MASSES.log())], ids=["unit", "diagonal"])
@pytest.mark.parametrize("problem", [PURE, MIXED], ids=["pure", "mixed"])
def test_exact_draws_of_a_staircase_stay_exact(problem: Staircase, metric: Metric | None) -> None:
    torch.manual_seed(0)
    start = problem.draw(40_000)
    assert_uniform(problem.uniforms(start))
    end, reports = run(kernel_for(problem, 0.6, 5, metric), start, 3)
    assert_uniform(problem.uniforms(end))
    assert ((end - start).norm(dim=-1) > 0.5).double().mean() > 0.5, "the chains hardly moved"
    crossed = torch.stack([info["crossing_rate"] for info in reports]).mean()
    assert 0.1 < crossed < 0.9, "either bouncing or crossing was not tested"
    if problem is MIXED:
        accepted = torch.stack([info["accepted"] for info in reports]).double().mean()
        assert accepted < 0.98, "the acceptance step was not tested"


@pytest.mark.parametrize(
    "problem", [pytest.param(THREE, id="3-d"), pytest.param(LARGE, id="20-d", marks=pytest.mark.slow)]
)
def test_exact_draws_of_integers_stay_exact(problem: CountsAndClasses) -> None:
    torch.manual_seed(0)
    start = problem.draw(20_000)
    assert_uniform(problem.uniforms(start))
    end, reports = run(kernel_for(problem, 0.4, 3), start, 3)
    assert_uniform(problem.uniforms(end))
    accepted = torch.stack([info["accepted"] for info in reports]).double().mean()
    assert 0.3 < accepted < 0.98, "the acceptance step was not tested"
    before, after = (problem.density.layout.unflatten(z) for z in (start, end))
    for name in ("n", "c"):
        assert (before[name] != after[name]).double().mean() > 0.3, "the integers hardly moved"


@pytest.mark.parametrize("order_of_all", [False, True], ids=["some coordinates", "all coordinates"])
def test_exact_draws_of_a_smooth_target_stay_exact(order_of_all: bool) -> None:
    torch.manual_seed(0)
    problem = Mixture()
    kernel = DiscontinuousHMC(problem.density, torch.tensor([order_of_all, True]), 1.2, 3)
    end, _ = run(kernel, problem.draw(40_000), 3)
    for direction in torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-0.8, 0.6]], dtype=F64):
        assert_uniform(problem.projected_cdf(end, direction))


@pytest.mark.parametrize("problem", [PURE, CountsAndClasses(continuous=1)], ids=["staircase", "integers"])
def test_energy_is_exact_without_continuous_coordinates(problem: Problem) -> None:
    """Every jump is paid for by the momentum of its coordinate: nothing is left to reject."""
    torch.manual_seed(0)
    start = problem.draw(300)
    density, mask = problem.density, problem.discontinuous
    if not mask.all():  # the continuous coordinates given, as data
        fixed = start[:, ~mask]
        density = Density(lambda z, x: problem.density.log_prob(torch.cat([x, z], -1)), fixed)
        start, mask = start[:, mask], mask[mask]
    metric = DiagonalMetric(torch.linspace(-0.7, 0.5, len(mask), dtype=F64))
    kernel = DiscontinuousHMC(density, mask, 0.4, 10, metric)
    _, reports = run(kernel, start, 5)
    for info in reports:
        assert info["energy_change"].abs().max() < 1e-11
        assert info["accepted"].all() and (info["num_gradients"] == 0).all()
        assert 0 < info["crossing_rate"].mean() < 1
    assert not tuning(kernel).step_size


def test_a_mass_is_a_step_size() -> None:
    """Mass m with step ε moves as unit mass with step ε/m, in both kinds of coordinates."""
    torch.manual_seed(0)
    start = MIXED.draw(50)
    with_mass = kernel_for(MIXED, 0.5, 4, DiagonalMetric(MASSES.log()))
    with_steps = DiscontinuousHMC(MIXED.density, [True, False], 0.5 / MASSES, 4)
    for one, other in zip(run(with_mass, start, 3), run(with_steps, start, 3), strict=True):
        torch.testing.assert_close(one, other)


def test_rank_of_the_truth_among_posterior_draws_is_uniform() -> None:
    """Simulation-based calibration of n ~ Poisson(6), logit p ~ N(0, 1), y ~ Binomial(n, p).

    One posterior per chain.  The truth is placed at random in a stretch of a reversible chain run from it in
    both directions; ties are broken at random.  [Gandy & Scott 2020]
    """
    torch.manual_seed(0)
    count, num_draws = 8_000, 7
    n, x = torch.poisson(torch.full((count,), 6.0)).long(), torch.randn(count, dtype=F64)
    y = torch.binomial(n.double(), x.sigmoid())

    def log_joint(v: dict[str, Tensor], y: Tensor) -> Tensor:
        n, x = v["n"], v["x"]
        missed = (n - y).clamp(min=0)
        prior = n * math.log(6.0) - 0.5 * x.square()  # n! cancels against the binomial coefficient
        likelihood = y * x - n * torch.nn.functional.softplus(x) - (missed + 1).lgamma()
        return (prior + likelihood).where(n >= y, -torch.inf)

    density = EmbeddedDensity(log_joint, y, shapes={"n": (), "x": ()}, discrete={"n": Counts()})
    kernel = DiscontinuousHMC(density, ["n"], 0.6, 3)
    place = Counts().embed(n, 1 - torch.rand(count, dtype=F64))
    truth = torch.stack([place, x], -1)
    before = torch.randint(0, num_draws + 1, (count,))
    below, ties = torch.zeros(count, 2, dtype=F64), torch.zeros(count, 2, dtype=F64)
    for seed, length in ((1000, before), (1001, num_draws - before)):
        generator, state = torch.Generator().manual_seed(seed), kernel.init(truth)
        for index in range(num_draws):
            state, _ = kernel.step(state, generator)
            counted = (index < length)[:, None]
            below += (state.position < truth) & counted
            ties += (state.position == truth) & counted
    assert_uniform((below + torch.rand_like(ties) * (ties + 1)) / (num_draws + 1))


@pytest.mark.slow
def test_forgets_a_wrong_start() -> None:
    """Binomial with unknown n: frequencies of n against the enumerated posterior, p integrated exactly."""
    torch.manual_seed(0)
    y = torch.tensor([4.0, 6.0, 3.0], dtype=F64)

    def log_joint(v: dict[str, Tensor]) -> Tensor:  # n ~ Poisson(8), p ~ Beta(2, 2), x = logit p
        n, x = v["n"], v["x"]
        ways = 3 * (n + 1).lgamma() - ((n[..., None] - y).clamp(min=0) + 1).lgamma().sum(-1)
        log_p_and_q = (2 + y.sum()) * x - (4 + 3 * n) * torch.nn.functional.softplus(x)
        return ways + log_p_and_q + n * math.log(8.0) - (n + 1).lgamma()

    n = torch.arange(6, 60, dtype=F64)
    ways = 3 * (n + 1).lgamma() - (n[:, None] - y + 1).lgamma().sum(-1)
    log_beta = (2 + y.sum()).lgamma() + (2 + 3 * n - y.sum()).lgamma() - (4 + 3 * n).lgamma()
    exact = (ways + log_beta + n * math.log(8.0) - (n + 1).lgamma()).softmax(0)
    density = EmbeddedDensity(log_joint, shapes={"n": (), "x": ()}, discrete={"n": Counts(low=6)})
    kernel = DiscontinuousHMC(density, density.discontinuous, 0.5, 5)
    start = density.layout.flatten({"n": torch.full((6_000,), 40), "x": torch.zeros(6_000, dtype=F64)})
    end, _ = run(kernel, start, 40)
    drawn = density.layout.unflatten(end)["n"]
    values = torch.arange(6, 18)
    assert_mean((drawn[:, None] == values).double(), exact[: len(values)])


def test_a_derivative_that_does_not_exist_is_not_asked_for() -> None:
    """log γ whose derivative in the discontinuous coordinate is NaN gives the same chains."""

    def poisoned(z: Tensor) -> Tensor:
        return MIXED.log_prob(z) + (z[..., 0] - z[..., 0]).sqrt()

    torch.manual_seed(0)
    start = MIXED.draw(20)
    clean, _ = run(kernel_for(MIXED, 0.4, 3), start, 3)
    end, reports = run(DiscontinuousHMC(poisoned, [True, False], 0.4, 3), start, 3)
    torch.testing.assert_close(end, clean)
    assert not torch.stack([info["diverged"] for info in reports]).any()


def test_every_chain_draws_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """All six orders of three coordinates as often, and none the same for all chains.

    One order for ever, or for a whole batch, is no reversible kernel: backwards the order is another.  The
    harm is too small for a test of moments, so the orders themselves are looked at.
    """
    orders, run_trajectory = [], DiscontinuousSystem.trajectory

    def watched(self: DiscontinuousSystem, start: Phase, size: Tensor, num: int, order: Tensor) -> tuple:
        orders.append(order)
        return run_trajectory(self, start, size, num, order)

    monkeypatch.setattr(DiscontinuousSystem, "trajectory", watched)
    run(DiscontinuousHMC(flat, [False, True, True, True], 0.1, 1), torch.zeros(60_000, 4, dtype=F64), 1)
    (order,) = orders
    code = order @ torch.tensor([16, 4, 1])
    expected = torch.tensor([27, 30, 39, 45, 54, 57])  # 123, 132, 213, 231, 312, 321 in base four
    assert_mean((code[:, None] == expected).double(), 1 / 6)


@pytest.mark.parametrize("problem", [PURE, MIXED], ids=["pure", "mixed"])
def test_reports_what_was_computed(problem: Staircase) -> None:
    calls = {"value": 0, "gradient": 0}

    def counting(z: Tensor) -> Tensor:
        calls["gradient" if z.requires_grad else "value"] += 1
        return problem.log_prob(z)

    kernel = DiscontinuousHMC(counting, problem.discontinuous, 0.4, 3)
    state = kernel.init(problem.draw(2))
    calls.update(value=0, gradient=0)
    _, info = kernel.step(state)
    assert info["num_evaluations"].tolist() == [calls["value"]] * 2
    assert info["num_gradients"].tolist() == [calls["gradient"]] * 2


def flat(z: Tensor) -> Tensor:
    return -z.square().sum(-1)


NAMED = Density(lambda v: -v["a"].square(), shapes={"a": ()})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DiscontinuousHMC(flat, [False, False], 0.1, 1), "no coordinate is discontinuous: use HMC"),
        (lambda: DiscontinuousHMC(flat, torch.tensor([0.0, 1.0]), 0.1, 1), "must be a boolean mask"),
        (lambda: DiscontinuousHMC(flat, torch.tensor(True), 0.1, 1), "must be a boolean mask"),
        (lambda: DiscontinuousHMC(flat, ["a"], 0.1, 1), "names need a density with named variables"),
        (lambda: DiscontinuousHMC(NAMED, ["b"], 0.1, 1), "there is no variable 'b': name some of"),
        (lambda: DiscontinuousHMC(NAMED, [True, True], 0.1, 1), "has 2 entries, the variables fill 1"),
        (lambda: DiscontinuousHMC(flat, [True], 0.0, 1), "step_size must be positive"),
        (lambda: DiscontinuousHMC(flat, [True], 0.1, 0), "num_steps must be at least 1"),
        (lambda: DiscontinuousHMC(flat, [True], 0.1, 1, jitter=1.0), "jitter must lie in"),
        (
            lambda: DiscontinuousHMC(flat, [True], 0.1, 1, CholeskyMetric(-torch.eye(1))),
            "masses of discontinuous coordinates must be positive",
        ),
        (
            lambda: DiscontinuousHMC(
                flat, [True, False], 0.1, 1, CholeskyMetric(torch.tensor([[1.0, 0.0], [0.5, 1.0]]))
            ),
            "mixes discontinuous coordinates",
        ),
        (
            lambda: DiscontinuousHMC(flat, [True, False], 0.1, 1).replace(
                metric=CholeskyMetric(torch.tensor([[1.0, 0.0], [0.5, 1.0]]))
            ),
            "mixes discontinuous coordinates",
        ),
        (lambda: DiscontinuousHMC(flat, [True], 0.1, 1).init(torch.zeros(3, 2)), "the mask .* has 1 entries"),
        (
            lambda: DiscontinuousHMC(flat, [True, False], 0.1, 1, DiagonalMetric(MASSES)).init(
                torch.zeros(2)
            ),
            "give both the same dimension, dtype and device",
        ),
        (
            lambda: DiscontinuousHMC(lambda z: flat(z).detach(), [True, False], 0.1, 1).init(torch.zeros(2)),
            "without gradient",
        ),
    ],
)
def test_misuse_says_what_to_do(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_metrics_that_keep_the_coordinates_apart_are_welcome() -> None:
    root = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.3, 0.0, 1.0]], dtype=F64)
    for metric in (CholeskyMetric(root), CholeskyMetric(root.expand(4, 3, 3)), DiagonalMetric(root[:1])):
        kernel = DiscontinuousHMC(flat, [False, True, False], 0.1, 1, metric)
        assert kernel.step(kernel.init(torch.zeros(4, 3, dtype=F64)))[0].position.shape == (4, 3)
