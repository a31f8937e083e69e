"""Chains with estimated densities: the laws of kernels for every combination, estimates noisy or exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import hmcvi
from hmcvi import Density
from hmcvi.kernels import (
    AuxiliaryPseudoMarginal,
    AuxiliaryState,
    Compose,
    DiagonalMetric,
    EllipticalSlice,
    Estimator,
    Gibbs,
    LinearSlice,
    PseudoMarginalHMC,
    RandomWalkMetropolis,
    SeededEstimator,
    apm_mi_mh,
    apm_mi_ss,
    apm_ss_mh,
    apm_ss_ss,
    pm_mh,
)
from hmcvi.kernels.mcmc.retarget import retarget
from hmcvi.kernels.pseudo_marginal.hmc import AuxiliaryPhase
from hmcvi.kernels.pseudo_marginal.kernels import PseudoMarginal
from tests.contracts.estimated import ESTIMATED, SIZE, Noisy
from tests.support.problems import F64
from tests.support.statistics import assert_independent, assert_mean, assert_uniform
from tests.support.targets import PLANE


def run(
    kernel: PseudoMarginal, state: AuxiliaryState, num_steps: int, seed: int = 1000
) -> tuple[AuxiliaryState, list[dict]]:
    generator, reports = torch.Generator().manual_seed(seed), []
    for _ in range(num_steps):
        state, info = kernel.step(state, generator)
        reports.append(info)
    return state, reports


few_draws = pytest.mark.filterwarnings("ignore::hmcvi.sampling.SamplingWarning")
combinations = pytest.mark.parametrize("name", ESTIMATED)
over_distributions = pytest.mark.parametrize(
    ("name", "distribution"),
    [(n, rho) for n in ESTIMATED for rho in ("normal", "uniform") if (n, rho) != ("PM-HMC", "uniform")],
)


@over_distributions
@pytest.mark.parametrize(
    ("target", "noise"), [("banana", 0.0), ("modes", 1.2)], ids=["without noise", "with noise"]
)
def test_exact_draws_stay_exact_draws(name: str, distribution: str, target: str, noise: float) -> None:
    """x keeps its distribution, u keeps its own given x, and what is left of u knows nothing of x."""
    torch.manual_seed(0)
    problem = Noisy(PLANE[target], noise, distribution)
    kernel = ESTIMATED[name](problem.estimator)
    start = kernel.at(*problem.draw(20_000))
    end, reports = run(kernel, start, 4)
    assert_uniform(problem.target.uniforms(end.position))
    assert_uniform(problem.uniforms(end.position, end.auxiliary))
    both = torch.cat(
        [problem.target.uniforms(end.position), problem.uniforms(end.position, end.auxiliary)], -1
    )
    if problem.target.independent:
        assert_independent(both)
    assert (end.position != start.position).any(-1).double().mean() > 0.1
    assert (end.auxiliary != start.auxiliary).any(-1).double().mean() > 0.1
    for info in reports:
        assert all(value.shape == (20_000,) for value in info.values())


@pytest.mark.slow
@combinations
def test_a_wrong_start_is_forgotten(name: str) -> None:
    torch.manual_seed(0)
    problem = Noisy(PLANE["modes"], 0.4)
    kernel = ESTIMATED[name](problem.estimator)
    end, _ = run(kernel, kernel.init(torch.randn(3_000, 2, dtype=F64)), 60)
    assert_uniform(problem.target.uniforms(end.position))
    assert_uniform(problem.uniforms(end.position, end.auxiliary))


@combinations
def test_the_state_knows_its_estimate(name: str) -> None:
    """What is carried on belongs to the new x and u, accepted or not."""
    torch.manual_seed(0)
    problem = Noisy(PLANE["banana"], 1.0)
    kernel = ESTIMATED[name](problem.estimator)
    end, _ = run(kernel, kernel.at(*problem.draw(200)), 3)
    torch.testing.assert_close(end.prepared, problem.slope(end.position))
    torch.testing.assert_close(
        end.log_prob, problem.log_estimate(end.position, end.auxiliary, problem.slope(end.position))
    )


@combinations
def test_what_depends_on_x_alone_is_prepared_once_for_each_x(name: str) -> None:
    """One chain alone: as often as x is proposed, and never for a new u."""
    torch.manual_seed(0)
    problem = Noisy(PLANE["banana"], 1.0)
    kernel = ESTIMATED[name](problem.estimator)
    state, generator = kernel.at(*problem.draw(1)), torch.Generator().manual_seed(0)
    for _ in range(20):
        problem.num_prepared = 0
        state, info = kernel.step(state, generator)
        asked = info.get("num_target_evaluations", info.get("num_evaluations", info.get("num_gradients")))
        assert problem.num_prepared == int(asked)


@combinations
def test_chains_that_wait_for_others_are_left_out_of_the_work(name: str) -> None:
    """Every chain goes where it would have gone, for as many estimates as there were places to look at."""
    torch.manual_seed(0)
    alone, together = (Noisy(PLANE["banana"], 1.0, chainwise=chainwise) for chainwise in (True, False))
    x, u = alone.draw(50)
    ends = []
    for problem in (alone, together):
        kernel = ESTIMATED[name](problem.estimator)
        start = kernel.at(x, u)
        problem.num_prepared = problem.num_estimated = 0
        ends.append(run(kernel, start, 5))
    (end, reports), (other, _) = ends
    torch.testing.assert_close(end, other)
    if "HMC" not in name:
        asked = sum(int(info["num_evaluations"].sum()) for info in reports)
        prepared = sum(
            int(info.get("num_target_evaluations", info["num_evaluations"]).sum()) for info in reports
        )
        assert (alone.num_estimated, alone.num_prepared) == (asked, prepared)
        assert ("SS" in name) == (together.num_estimated > asked)


def test_a_target_update_of_several_kernels_prepares_the_place_it_ends_in() -> None:
    torch.manual_seed(0)
    problem = Noisy(PLANE["banana"], 1.0)
    kernel = AuxiliaryPseudoMarginal(
        problem.estimator,
        EllipticalSlice,
        lambda density: Compose(LinearSlice(density, 1.0), RandomWalkMetropolis(density, 2.0)),
    )
    end, _ = run(kernel, kernel.at(*problem.draw(500)), 2)
    torch.testing.assert_close(end.prepared, problem.slope(end.position))


@combinations
def test_randomness_comes_from_the_generator(name: str) -> None:
    problem = Noisy(PLANE["banana"], 1.0)
    kernel = ESTIMATED[name](problem.estimator)
    before = torch.get_rng_state()
    start = kernel.init(torch.zeros(10, 2, dtype=F64))
    first, again, other = (run(kernel, start, 3, seed)[0].position for seed in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again) and not torch.equal(first, other)


@combinations
@pytest.mark.parametrize("batch", [(), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes_are_kept(name: str, batch: tuple[int, ...], dtype: torch.dtype) -> None:
    problem = Noisy(PLANE["banana"], 1.0)
    kernel = ESTIMATED[name](problem.estimator)
    if hasattr(kernel, "metric"):
        kernel = kernel.replace(metric=DiagonalMetric(torch.zeros(2, dtype=dtype)))
    state, info = kernel.step(kernel.init(torch.zeros(*batch, 2, dtype=dtype)))
    for value, shape in (
        (state.position, (*batch, 2)),
        (state.auxiliary, (*batch, SIZE)),
        (state.log_prob, batch),
    ):
        assert (value.shape, value.dtype) == (shape, dtype)
    assert all(value.shape == batch for value in info.values())


@combinations
def test_where_there_is_no_estimate_a_chain_does_not_go(name: str) -> None:
    """NaN, for instance of a fit that has failed: rejected, and counted."""
    torch.manual_seed(0)
    problem = Noisy(PLANE["banana"], 0.5)

    def log_estimate(x: Tensor, u: Tensor) -> Tensor:
        value = problem.log_estimate(x, u, problem.slope(x))
        return value.where(x[..., 0] < 0.5, torch.nan)

    kernel = ESTIMATED[name](Estimator(log_estimate, SIZE))
    start = problem.target.draw(500)
    start = start[start[:, 0] < 0.5]
    end, reports = run(kernel, kernel.init(start), 5)
    assert (end.position[:, 0] < 0.5).all() and (end.position != start).any(-1).double().mean() > 0.5
    if "num_zero_estimates" in reports[0]:
        assert sum(int(info["num_zero_estimates"].sum()) for info in reports) > 0


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_correlated_estimates_are_compared_with_less_noise(distribution: str) -> None:
    """E(u' − u)² = 2 (1 − r) for normal u, or for Φ⁻¹(u); ρ is kept; with r = 0 they are drawn anew."""
    torch.manual_seed(0)
    rho = Noisy(PLANE["modes"], 1.0, distribution).estimator.distribution
    u = rho.draw(torch.empty(50_000, 2, dtype=F64))
    near = rho.perturb(u, 0.9, None)
    normal, moved = (torch.special.ndtri(v) for v in (u, near)) if distribution == "uniform" else (u, near)
    assert_mean((moved - normal).square(), 2 * (1 - 0.9))
    assert_uniform(torch.special.ndtr(moved))
    assert_mean((moved - 0.9 * normal) * normal, 0.0)
    fresh = rho.perturb(u, 0.0, torch.Generator().manual_seed(1))
    anew = rho.draw(u, torch.Generator().manual_seed(1))
    assert torch.equal(fresh, anew)


def test_correlation_frees_chains_that_noise_holds() -> None:
    torch.manual_seed(0)
    problem = Noisy(PLANE["modes"], 3.0)
    start, rates = problem.draw(5000), []
    for correlation in (0.0, 0.99):
        kernel = pm_mh(problem.estimator, 0.5, correlation=correlation)
        _, reports = run(kernel, kernel.at(*start), 5)
        rates.append(torch.stack([report["accepted"] for report in reports]).double().mean())
    assert rates[1] > 2 * rates[0]


def test_a_seed_is_an_auxiliary_variable() -> None:
    """A black box with noise of mean one keeps exact draws of x, started where u is drawn given x."""
    torch.manual_seed(0)
    target = PLANE["banana"]

    def black_box(x: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.rand((), generator=generator, dtype=F64)
        return target.density.log_prob(x) + (2 * noise).log()

    estimator, x = SeededEstimator(black_box), target.draw(500)
    u, missing = torch.empty(len(x), 1, dtype=F64), torch.arange(len(x))
    while len(missing):  # u | x has the density of the noise: by rejection, the noise being at most 2
        u[missing] = torch.rand(len(missing), 1, dtype=F64)
        noise = (estimator.log_estimate(x[missing], u[missing]) - target.density.log_prob(x[missing])).exp()
        missing = missing[torch.rand_like(noise) > noise / 2]
    for kernel in (pm_mh(estimator, 0.8), apm_mi_mh(estimator, 1.0), apm_mi_ss(estimator, 2.0)):
        end, _ = run(kernel, kernel.at(x, u), 3)
        assert_uniform(target.uniforms(end.position))
    with pytest.raises(ValueError, match="no seed gives: use apm_mi_mh"):
        apm_ss_mh(estimator, 1.0)


def test_a_black_box_of_named_variables() -> None:
    def black_box(v: dict[str, Tensor], generator: torch.Generator) -> Tensor:
        noise = 0.1 * torch.randn((), dtype=F64, generator=generator)
        return noise - 0.5 * (v["a"].square() + (v["b"] - 1).square().sum())

    estimator = SeededEstimator(black_box, shapes={"a": (), "b": (2,)})
    kernel = apm_mi_mh(estimator, 0.5)
    state, _ = kernel.step(kernel.init(torch.zeros(4, 3, dtype=F64)), torch.Generator().manual_seed(0))
    assert state.position.shape == (4, 3) and kernel.density.layout is estimator.layout


class TestHamiltonianDynamics:
    problem = Noisy(PLANE["banana"], 1.0)

    def phase(self, kernel: PseudoMarginalHMC, count: int = 50) -> AuxiliaryPhase:
        torch.manual_seed(0)
        state = kernel.at(*self.problem.draw(count))
        return AuxiliaryPhase(state, torch.randn(count, 2, dtype=F64), torch.randn(count, SIZE, dtype=F64))

    def test_are_reversible(self) -> None:
        kernel = PseudoMarginalHMC(self.problem.estimator, 0.3, 5)
        start = self.phase(kernel)
        end = kernel.simulate(start)
        back = kernel.simulate(
            end._replace(momentum=-end.momentum, auxiliary_momentum=-end.auxiliary_momentum)
        )
        torch.testing.assert_close(back.state.position, start.state.position)
        torch.testing.assert_close(back.state.auxiliary, start.state.auxiliary)
        torch.testing.assert_close(-back.momentum, start.momentum)
        torch.testing.assert_close(-back.auxiliary_momentum, start.auxiliary_momentum)

    def test_keep_the_energy_to_second_order(self) -> None:
        errors = []
        for num_steps in (20, 40, 80):
            kernel = PseudoMarginalHMC(self.problem.estimator, 1.0 / num_steps, num_steps)
            start = self.phase(kernel)
            change = kernel.energy(kernel.simulate(start)) - kernel.energy(start)
            errors.append(change.abs().mean())
        for coarse, fine in pairwise(errors):
            assert 3.6 < coarse / fine < 4.4

    def test_move_auxiliary_variables_that_say_nothing_exactly(self) -> None:
        """However many there are: their normal distribution alone is rotated without error."""
        estimator = Estimator(lambda x, u: -0.5 * x.square().sum(-1) + 0 * u.sum(-1), 10_000)
        kernel = PseudoMarginalHMC(estimator, 0.1, 10)
        _, info = kernel.step(kernel.init(torch.randn(20, 2, dtype=F64)), torch.Generator().manual_seed(0))
        assert info["energy_change"].abs().max() < 0.02


def test_a_composition_of_other_kernels_has_the_same_estimator() -> None:
    kernel = apm_mi_mh(Estimator(quadratic, 1), 1.0)
    auxiliary, walk = kernel.kernels
    longer = kernel.replace(kernels=(auxiliary, walk.replace(step_size=2.0)))
    assert longer.estimator is kernel.estimator and longer.kernels[0] is auxiliary
    assert float(longer.kernels[1].step_size) == 2.0 and float(kernel.kernels[1].step_size) == 1.0
    with pytest.raises(AttributeError, match="no setting 'step_size'"):
        kernel.replace(step_size=2.0)
    with pytest.raises(FrozenInstanceError):
        kernel.kernels = longer.kernels


@few_draws
def test_warm_up_tunes_both_updates_and_a_run_can_be_resumed(tmp_path) -> None:
    problem = Noisy(PLANE["modes"], 0.8)
    kernel, init = apm_mi_mh(problem.estimator, 0.01), torch.zeros(20, 2, dtype=F64)
    draws = hmcvi.sample(kernel, init, 300, num_warmup=150, progress=False)
    assert 0.18 < draws.stats["acceptance_rate_target"].mean() < 0.3
    assert draws.stats["acceptance_rate_auxiliary"].mean() > 0.2
    half = hmcvi.sample(kernel, init, 150, num_warmup=150, progress=False)
    half.save(tmp_path / "half.pt")
    resumed = hmcvi.sampling.Draws.load(tmp_path / "half.pt", kernel).resume(150, progress=False)
    assert torch.equal(resumed.position, draws.position)


@pytest.mark.slow
@few_draws
def test_hmc_is_tuned_too() -> None:
    problem = Noisy(PLANE["modes"], 0.8)
    kernel = PseudoMarginalHMC(problem.estimator, 0.01, 5)
    draws = hmcvi.sample(kernel, torch.zeros(20, 2, dtype=F64), 200, num_warmup=150, progress=False)
    assert 0.7 < draws.stats["acceptance_rate"].mean() < 0.9


@few_draws
def test_variables_keep_their_names() -> None:
    estimator = Estimator(
        lambda v, u: -0.5 * (v["location"].square().sum(-1) + v["scale"].square()),
        auxiliary_dim=1,
        shapes={"location": (2,), "scale": ()},
    )
    init = {"location": torch.zeros(4, 2), "scale": torch.zeros(4)}
    draws = hmcvi.sample(apm_ss_ss(estimator, 2.0), init, 100, progress=False)
    assert draws.variables["location"].shape == (4, 100, 2)


def test_auxiliary_variables_that_hardly_move_are_reported() -> None:
    problem = Noisy(PLANE["modes"], 30.0)
    kernel = apm_mi_mh(problem.estimator, 1.0)
    with pytest.warns(hmcvi.sampling.SamplingWarning, match="new auxiliary variables are accepted at a rate"):
        hmcvi.sample(kernel, torch.zeros(20, 2, dtype=F64), 200, progress=False)


def quadratic(x: Tensor, u: Tensor) -> Tensor:
    return -0.5 * x.square().sum(-1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Estimator(quadratic, 0), "auxiliary_dim must be at least 1"),
        (lambda: Estimator(quadratic, 1, "cauchy"), "law must be one of normal, uniform"),
        (
            lambda: apm_ss_ss(Estimator(lambda x, u: x, 1), 1.0).init(torch.zeros(3, 2)),
            r"one number per chain, \[3\], got \[3, 2\]",
        ),
        (
            lambda: apm_ss_ss(Estimator(lambda x, u: (u - 9).log().sum(-1), 1), 1.0).init(torch.zeros(3, 2)),
            "estimates must not be negative",
        ),
        (
            lambda: apm_ss_ss(Estimator(lambda x, u: torch.randn(len(x)), 1), 1.0).init(torch.zeros(3, 2)),
            "gave two estimates for the same x and u.*SeededEstimator",
        ),
        (
            lambda: Estimator(quadratic, 2).check(torch.zeros(3, 2), torch.zeros(3, 1)),
            r"must be \[3, 2\], got \[3, 1\]",
        ),
        (lambda: PseudoMarginalHMC(Estimator(quadratic, 1, "uniform"), 0.1, 3), 'law "normal"'),
        (lambda: PseudoMarginalHMC(Estimator(quadratic, 1), 0.1, 0), "num_steps must be at least 1"),
        (
            lambda: PseudoMarginalHMC(Estimator(lambda x, u: quadratic(x, u).detach(), 1), 0.1, 3).init(
                torch.zeros(3, 2)
            ),
            "without gradient: apm_ss_mh",
        ),
        (lambda: pm_mh(Estimator(quadratic, 1), -1.0), "step_size must be positive"),
        (lambda: pm_mh(Estimator(quadratic, 1), 1.0, correlation=1.0), "at least 0 and below 1, got 1.0"),
        (
            lambda: pm_mh(SeededEstimator(lambda x, generator: x.sum()), 1.0, correlation=0.5),
            "no seed is near another one",
        ),
        (
            lambda: apm_ss_ss(Estimator(quadratic, 1), 1.0).replace(density=None),
            "known by its estimator alone",
        ),
        (
            lambda: retarget(pm_mh(Estimator(quadratic, 1), 1.0), Density(quadratic)),
            "known by its estimator alone",
        ),
        (
            lambda: PseudoMarginalHMC(Estimator(quadratic, 1), 0.1, 3).replace(num_steps=0),
            "num_steps must be at least 1",
        ),
        (
            lambda: Gibbs([(0, apm_ss_ss(Estimator(quadratic, 1), 1.0))]).init(torch.zeros(3, 1)),
            "cannot be a block of Gibbs",
        ),
    ],
)
def test_misuse_says_what_to_do(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
