"""Fitted bases, and bases that cannot be used."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal

from experiments.models import MultilevelRegression
from hmcvi import Density
from hmcvi.evidence import (
    Fit,
    ais,
    bidirectional,
    fit_advi,
    gibbs_tempering,
    importance,
    laplace,
    moment_matched_mixture,
    pathfinder,
    refit,
    reverse_ais,
)
from hmcvi.evidence.bases import BaseDistribution
from hmcvi.kernels import HMC, Compose, LinearSlice
from tests.support.problems import F64, Mixture
from tests.support.statistics import assert_mean

PRECISION = torch.tensor([[2.0, 0.6, 0.0], [0.6, 1.0, -0.2], [0.0, -0.2, 0.5]], dtype=F64)
MEAN = torch.tensor([0.5, -1.0, 2.0], dtype=F64)
CORRELATED = Density(lambda z: 1.5 - 0.5 * ((z - MEAN) @ PRECISION * (z - MEAN)).sum(-1))
LOG_Z = 1.5 + 1.5 * torch.tensor(2 * torch.pi, dtype=F64).log() - 0.5 * PRECISION.logdet()
START = torch.zeros(2, 3, dtype=F64)


@pytest.mark.slow
def test_full_rank_advi_finds_a_normal_distribution() -> None:
    fit = fit_advi(CORRELATED, START, full_rank=True, num_steps=1500)
    torch.testing.assert_close(fit.mean, MEAN.expand(2, 3), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(fit.covariance, PRECISION.inverse().expand(2, 3, 3), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(fit.log_zeta, LOG_Z.expand(2), atol=1e-6, rtol=0.0)


def test_diagonal_advi_finds_the_best_of_its_kind() -> None:
    """The same mean, variances 1 / P_ii, and a bound short of log Z by the divergence."""
    fit = fit_advi(CORRELATED, START, num_steps=1500)
    variances = 1 / PRECISION.diagonal()
    gap = 0.5 * (-variances.log().sum() - PRECISION.logdet())
    torch.testing.assert_close(fit.mean, MEAN.expand(2, 3), atol=0.03, rtol=0.0)
    torch.testing.assert_close(fit.stddev**2, variances.expand(2, 3), atol=0.05, rtol=0.05)
    torch.testing.assert_close(fit.log_zeta, (LOG_Z - gap).expand(2), atol=0.15, rtol=0.0)


def test_laplace_is_exact_for_normal_distributions_and_finds_modes() -> None:
    fit = laplace(CORRELATED, START)
    torch.testing.assert_close(fit.mean, MEAN.expand(2, 3))
    torch.testing.assert_close(fit.covariance, PRECISION.inverse().expand(2, 3, 3))
    torch.testing.assert_close(fit.log_zeta, LOG_Z.expand(2))
    far = torch.tensor([[-3.0, 2.0], [2.0, -1.0]], dtype=F64)
    modes = laplace(Mixture().density, far)
    assert Mixture().density.value_and_grad(modes.mean)[1].abs().max() < 1e-5
    assert (modes.mean - Mixture().loc).norm(dim=-1).max() < 0.2
    with pytest.raises(ValueError, match="no maximum"):
        laplace(Density(lambda z: z.sum(-1)), torch.zeros(2, dtype=F64), max_steps=5)


@pytest.mark.parametrize("fitted", [laplace, pathfinder])
def test_fits_start_at_zero_where_the_dimension_is_known(fitted: Callable[..., Fit]) -> None:
    target = Density(lambda z: -0.5 * (z - 3.0).square().sum(-1), dim=2)
    found, given = fitted(target), fitted(target, torch.zeros(2))
    torch.testing.assert_close((found.mean, found.root), (given.mean, given.root))
    with pytest.raises(ValueError, match="dim=d"):
        fitted(Density(lambda z: -z.square().sum(-1)))


def test_laplace_starts_anywhere_and_in_single_precision() -> None:
    """Where the curvature has the wrong sign, and where rounding hides gains below 1e3 · 8 ε ≈ 0.03²."""
    start = torch.tensor([[0.05, 0.0], [-0.1, 3.0], [2.0, -1.0]])

    def double_well(z: Tensor) -> Tensor:  # largest at (±1, 0)
        return 1e3 - 4 * (z[..., 0].square() - 1).square() - 0.5 * z[..., 1].square()

    for dtype, tolerance in ((torch.float32, 0.03), (F64, 3e-5)):
        fit = laplace(Density(double_well), start.to(dtype))
        expected = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]], dtype=dtype)
        torch.testing.assert_close(fit.mean, expected, atol=tolerance, rtol=0.0)
        curvature = torch.diag(torch.tensor([1 / 32, 1.0], dtype=dtype)).expand(3, 2, 2)
        torch.testing.assert_close(fit.covariance, curvature, atol=tolerance, rtol=0.0)
    with pytest.raises(ValueError, match="no maximum"):  # but a saddle is none
        laplace(Density(double_well), torch.zeros(2, dtype=F64))


def test_laplace_goes_up_where_newton_steps_lead_away() -> None:
    """On −log cosh z from |z| > 1.09 the full step ends farther from the mode than it began."""
    fit = laplace(Density(lambda z: -z.cosh().log().sum(-1)), torch.tensor([[3.0], [-1.5]], dtype=F64))
    torch.testing.assert_close(fit.mean, torch.zeros(2, 1, dtype=F64), atol=3e-5, rtol=0.0)
    torch.testing.assert_close(fit.log_zeta, torch.full((2,), 0.5 * math.log(2 * math.pi), dtype=F64))


def test_a_mixture_of_fits_has_the_moments_of_its_parts() -> None:
    problem = Mixture()
    parts = Fit(problem.loc, problem.root, problem.shares.log() + problem.log_evidence)
    for fits in (parts, [*parts, parts[0]]):  # the same mode once more changes nothing
        matched = moment_matched_mixture(fits)
        torch.manual_seed(0)
        draws = problem.draw(40_000)
        assert_mean(draws, matched.mean)
        centred = draws - matched.mean
        assert_mean(centred[:, :, None] * centred[:, None], matched.covariance)
        torch.testing.assert_close(matched.log_zeta, torch.tensor(problem.log_evidence, dtype=F64))


@pytest.mark.slow
def test_a_fit_is_a_base_and_brings_its_zeta() -> None:
    target = Density(lambda v: -0.5 * v["a"] ** 2 - 0.25 * v["b"].pow(4).sum(-1), shapes={"a": (), "b": (2,)})
    fit = fit_advi(target, num_steps=300)
    evidence = gibbs_tempering(fit, target, 200, 8, 20, progress=False)
    assert torch.equal(evidence.diagnostics["log_zeta"], fit.log_zeta)
    quartic = 2 * torch.tensor(4.0).pow(-0.75) * torch.tensor(0.25).lgamma().exp()
    truth = 0.5 * torch.tensor(2 * torch.pi).log() + 2 * quartic.log()
    assert fit.log_zeta < truth + 0.1
    assert (evidence.log_z - truth).abs() < 4 * evidence.std_error


def test_a_base_refitted_to_the_draws_has_the_moments_of_the_target() -> None:
    """Two rounds from a base that is too wide: the second has a ζ, a mean and a covariance that fit."""
    problem = MultivariateNormal(MEAN, precision_matrix=PRECISION)
    target = Density(lambda z: problem.log_prob(z) + 2.0)
    base = Independent(Normal(torch.zeros(3, dtype=F64), 3.0), 1)
    first = gibbs_tempering(base, target, 400, 16, 50, progress=False)
    fit = refit(first)
    torch.testing.assert_close(fit.mean, first.expectation(lambda z: z))
    again = gibbs_tempering(fit, target, 400, 16, 50, progress=False)
    assert (again.log_z - 2.0).abs() < 4.5 * again.std_error
    assert again.std_error < first.std_error and again.ess > first.ess
    few = dataclasses.replace(first, position=first.position[:2], log_weight=first.log_weight[:2])
    with pytest.raises(ValueError, match="effective draws give no covariance in 3 dimensions"):
        refit(few)


def test_normal_bases_have_their_gradient_in_closed_form() -> None:
    torch.manual_seed(0)
    diagonal = Independent(Normal(torch.randn(4, 3, dtype=F64), torch.rand(4, 3, dtype=F64) + 0.5), 1)
    full = MultivariateNormal(MEAN, precision_matrix=PRECISION)
    fit = laplace(CORRELATED, START[0])
    for base, dim in ((diagonal, 3), (full, 3), (fit, 3)):
        z = torch.randn(5, 4, dim, dtype=F64)
        value, grad = BaseDistribution(base).density.value_and_grad(z)
        expected = Density(base.log_prob).value_and_grad(z)
        torch.testing.assert_close((value, grad), expected)


class Home:
    """A base of one's own: two methods, and a constant that should not be there."""

    def __init__(self, log_constant: float) -> None:
        self.mixture = MixtureSameFamily(
            Categorical(torch.tensor([0.3, 0.7])),
            MultivariateNormal(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), 2 * torch.eye(2)),
        )
        self.log_constant = log_constant

    def sample(self, shape: torch.Size = ()) -> Tensor:  # type: ignore[assignment]
        return self.mixture.sample(shape)

    def log_prob(self, z: Tensor) -> Tensor:
        return self.mixture.log_prob(z) + self.log_constant


def test_a_base_needs_only_two_methods_and_must_be_normalised() -> None:
    target = Density(lambda z: -0.5 * z.square().sum(-1))
    for estimate in (importance(Home(0.0), target, 2000), ais(Home(0.0), target, 5, 500, progress=False)):
        assert (estimate.log_z - torch.tensor(2 * torch.pi).log()).abs() < 4 * estimate.std_error
    with pytest.raises(ValueError, match=r"integrates to about (1[89]|2[01])\d*(\.\d)?, not to 1"):
        importance(Home(3.0), target, 100)


NORMAL = Independent(Normal(torch.zeros(2, dtype=F64), 1.5), 1)
TARGET = Density(lambda z: (-0.5 * z.square().sum(-1)).where(z[..., 0] > -5, -torch.inf))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (torch.tensor([0.0, 0.5, 0.4, 1.0]), r"must increase: β_1 = 0.5, then 0.4"),
        (torch.tensor([0.0, 0.5, 0.5, 1.0]), "must increase"),
        (torch.tensor([0.1, 0.5, 1.0]), "0 = β_0"),
        (torch.tensor([0.0, 0.9]), "β_K = 1"),
        (torch.zeros(2, 2), "vector"),
        ("geometric", "sigmoidal"),
    ],
)
def test_impossible_schedules_are_refused(schedule: Tensor | str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ais(NORMAL, TARGET, schedule=schedule, progress=False)


def test_misuse_is_explained() -> None:
    with pytest.raises(ValueError, match="num_chains must be at least 1, got 0"):
        ais(NORMAL, TARGET, 5, num_chains=0)
    with pytest.raises(ValueError, match="num_samples must be at least 1"):
        importance(NORMAL, TARGET, 0)
    with pytest.raises(ValueError, match="num_temperatures must be at least 1"):
        ais(NORMAL, TARGET, 0)
    with pytest.raises(ValueError, match="leave one out"):
        ais(NORMAL, TARGET, 7, schedule=torch.tensor([0.0, 0.5, 1.0]))
    with pytest.raises(TypeError, match="not known to be normalised"):
        ais(TARGET, TARGET)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"hmcvi\.Density"):
        ais(NORMAL, NORMAL.log_prob)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Independent"):
        importance(Normal(torch.zeros(2), 1.0), TARGET, 10)
    with pytest.raises(ValueError, match="one number per chain"):
        importance(NORMAL, Density(lambda z: -z.square()), 10)
    with pytest.raises(ValueError, match="init"):
        fit_advi(TARGET)
    with pytest.raises(ValueError, match="no draws of the target"):
        reverse_ais(NORMAL, TARGET, torch.zeros(2, dtype=F64), 2, 4, progress=False).expectation(torch.sin)


def test_exact_samples_must_be_possible() -> None:
    outside = torch.tensor([-6.0, 0.0], dtype=F64)
    for estimator in (reverse_ais, bidirectional):
        with pytest.raises(ValueError, match="density zero"):
            estimator(NORMAL, TARGET, outside, 3, 4, progress=False)
        with pytest.raises(ValueError, match=r"must be \['d'\] or \[4, 'd'\]"):
            estimator(NORMAL, TARGET, torch.zeros(3, 2, dtype=F64), 3, 4, progress=False)
    with pytest.raises(ValueError, match="not reversible"):
        reverse_ais(
            NORMAL, TARGET, torch.zeros(2, dtype=F64), 3, 4,
            lambda density: Compose(HMC(density, 0.5, 1), LinearSlice(density, 1.0)), progress=False,
        )  # fmt: skip


@pytest.mark.slow
def test_advi_copes_with_scales_among_the_variables() -> None:
    """Their gradients explode far from the mode.  Few steps find what many find, more with correlations."""
    rng = torch.Generator().manual_seed(0)
    group, x = torch.arange(40) % 20, torch.randn(40, 2, dtype=F64, generator=rng)
    y = 1 + x @ torch.tensor([0.7, -0.6], dtype=F64) + 0.8 * torch.randn(40, dtype=F64, generator=rng)
    target = MultilevelRegression(y, x, group)
    start = torch.zeros(target.dim, dtype=F64)
    diagonal, full = (
        [fit_advi(target, start, full_rank, num_steps).log_zeta for num_steps in (600, 1500)]
        for full_rank in (False, True)
    )
    assert (diagonal[1] - diagonal[0]).abs() < 0.5 and (full[1] - full[0]).abs() < 0.5
    assert full[1] > diagonal[1] + 0.5
