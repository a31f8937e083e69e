"""What pilot runs choose, and errors of averages over chains."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Independent, Normal

from hmcvi import Density
from hmcvi.adaptation.schedule import interpolate
from hmcvi.evidence import ais, sigmoidal
from hmcvi.evidence.bases import BaseDistribution
from hmcvi.evidence.path import make_kernel, pilot_of
from hmcvi.kernels import HMC, RandomWalkMetropolis
from hmcvi.sampling.autocorrelation import mean_error
from tests.support.problems import F64


def narrowing(dim: int, scale: float = 3.0) -> tuple[Independent, Density]:
    """N(0, scale² I) → N(0, I): more happens near β = 0."""
    base = Independent(Normal(torch.zeros(dim, dtype=F64), scale), 1)
    return base, Density(lambda z: -0.5 * z.square().sum(-1))


def test_the_sigmoidal_schedule_is_the_one_of_the_source() -> None:
    k = torch.arange(11, dtype=F64)
    raw = 1 / (1 + torch.exp(-4 * (2 * k - 10) / 10))
    torch.testing.assert_close(sigmoidal(10), (raw - raw[0]) / (raw[-1] - raw[0]))
    assert sigmoidal(1).tolist() == [0, 1]


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_step_sizes_reach_the_acceptance_at_every_temperature(scale: float) -> None:
    """From a first guess that may be far off; the default kernel takes its mass from the base."""
    base = Independent(Normal(torch.zeros(5, dtype=F64), 3.0 * scale), 1)
    target = Density(lambda z: -0.5 * (z / scale).square().sum(-1))
    for kernel in (None, lambda density: HMC(density, 0.1, 2)):
        rates = ais(base, target, 60, 200, kernel, progress=False).diagnostics["acceptance_rate"]
        assert len(rates) == 59 and 0.65 < rates.mean() < 0.8
        assert ((rates > 0.6) & (rates < 0.85)).all(), rates


def test_a_random_walk_has_its_own_aim() -> None:
    base, target = narrowing(5)
    walk = ais(base, target, 20, 400, lambda density: RandomWalkMetropolis(density, 0.1), progress=False)
    assert (walk.diagnostics["acceptance_rate"].mean() - 0.234).abs() < 0.08


def test_the_adaptive_schedule_has_steps_of_equal_conditional_ess() -> None:
    """Var_β(log γ − log q) of normals is known: d/2 · (c / p_β)², p_β the precision, c its slope."""
    base, target = narrowing(10)
    start = BaseDistribution(base)
    pilot = pilot_of(start, make_kernel(None, start, target), start.generator(0))
    betas = pilot.schedule(40)
    fine = torch.linspace(0, 1, 100_001, dtype=F64)
    slope = 1 - 1 / 9
    spread = 5**0.5 * slope / (1 / 9 + slope * fine)
    lengths = interpolate(betas, fine, (spread / len(fine)).cumsum(0)).diff()
    assert (lengths / lengths.mean() - 1).abs().max() < 0.25
    assert betas[0] == 0 and betas[-1] == 1 and (betas.diff() > 0).all()


def test_the_adaptive_schedule_needs_fewer_temperatures() -> None:
    """The variance of log w at half of the temperatures is below that of the sigmoidal schedule."""
    base, target = narrowing(5, 30.0)
    variance = {
        (schedule, count): ais(base, target, count, 300, schedule=schedule, progress=False).log_weight.var()
        for schedule, count in (("sigmoidal", 400), ("adaptive", 200))
    }
    assert variance["adaptive", 200] < variance["sigmoidal", 400]


def test_the_pilot_knows_about_where_the_evidence_is() -> None:
    base, target = narrowing(3)
    start = BaseDistribution(base)
    pilot = pilot_of(start, make_kernel(None, start, target), start.generator(0))
    assert (pilot.log_z - 1.5 * torch.tensor(2 * torch.pi).log()).abs() < 0.5


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.9])
def test_errors_of_autoregressive_chains(rho: float) -> None:
    """x' = ρ x + √(1−ρ²) n: the mean of N draws has variance (1+ρ)/(1−ρ)/N."""
    torch.manual_seed(0)
    x, chain = torch.randn(4, 200, dtype=F64), []
    for _ in range(1000):
        x = rho * x + (1 - rho**2) ** 0.5 * torch.randn(4, 200, dtype=F64)
        chain.append(x)
    error = mean_error(torch.stack(chain))
    time = (1 + rho) / (1 - rho)
    assert (error.time.mean() / time - 1).abs() < 0.15
    assert (error.variance.mean() / (time / 4000) - 1).abs() < 0.15


def test_chains_that_disagree_are_no_independent_draws() -> None:
    torch.manual_seed(0)
    values = torch.randn(500, 4, dtype=F64) + 10 * torch.arange(4, dtype=F64)
    assert mean_error(values).variance > 10
