"""Warm-up finds the step size, the mass and the length that theory asks for, and then lets go of them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hmcvi import Density
from hmcvi.adaptation.mass import Moments, windows
from hmcvi.adaptation.step_size import DualAveraging
from hmcvi.adaptation.trajectory_length import OVERHEAD
from hmcvi.adaptation.tunable import Tuning, shortest, tuning
from hmcvi.adaptation.warmup import warm_up
from hmcvi.kernels import (
    HMC,
    Compose,
    DiagonalMetric,
    DiscontinuousHMC,
    Gibbs,
    IdentityMetric,
    Kernel,
    LinearSlice,
    RandomWalkMetropolis,
)
from hmcvi.sampling import Warmup
from tests.support.problems import F64

VARIANCES = torch.logspace(-2, 2, 16, dtype=F64)
SCALES = Density(lambda z: -0.5 * (z.square() / VARIANCES).sum(-1))
NORMAL = Density(lambda z: -0.5 * z.square().sum(-1))


def correlated(rho: float) -> tuple[Density, Tensor]:
    covariance = torch.tensor([[1.0, rho * 3], [rho * 3, 9.0]], dtype=F64)
    precision = torch.linalg.inv(covariance)
    return Density(lambda z: -0.5 * (z @ precision * z).sum(-1)), covariance


def warmed(kernel: Kernel, dim: int, num_warmup: int = 400, chains: int = 64, **settings: Any) -> Kernel:
    generator = torch.Generator().manual_seed(0)
    state = kernel.init(torch.randn(chains, dim, dtype=F64, generator=generator))
    tuned, _ = warm_up(kernel, state, num_warmup, generator, Warmup(**settings), lambda *_: None)
    return tuned


def acceptance(kernel: Kernel, position: Tensor, name: str = "acceptance_rate") -> float:
    """Of the kernel as it is, measured from exact draws."""
    generator, state = torch.Generator().manual_seed(1), kernel.init(position)
    rates = []
    for _ in range(40):
        state, info = kernel.step(state, generator)
        rates.append(info[name].mean())
    return float(torch.stack(rates).mean())


def exact(density_scale: Tensor, count: int = 2000) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, len(density_scale), dtype=F64, generator=generator) * density_scale


@pytest.mark.parametrize("given_step", [1e-5, 0.1, 300.0])
@pytest.mark.parametrize("target", [0.65, 0.9])
def test_the_step_size_reaches_the_target_wherever_it_starts(given_step: float, target: float) -> None:
    kernel = warmed(HMC(SCALES, given_step, 5, jitter=0.5), 16, target_acceptance=target)
    assert acceptance(kernel, exact(VARIANCES.sqrt())) == pytest.approx(target, abs=0.06)


@given(st.floats(-3, 3), st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_dual_averaging_is_that_of_pyro(center: float, errors: list[float]) -> None:
    from pyro.ops.dual_averaging import DualAveraging as Reference

    found, expected = DualAveraging(center, 0.1), Reference(prox_center=center, gamma=0.1)
    for error in errors:
        found.step(error)
        expected.step(error)
        assert (found.x, found.average) == pytest.approx(expected.get_state(), abs=1e-9)


def test_a_step_size_per_dimension_keeps_its_proportions() -> None:
    given_steps = torch.linspace(0.1, 3.0, 16, dtype=F64)
    kernel = warmed(HMC(SCALES, given_steps, 5), 16, 50, mass="fixed")
    assert isinstance(kernel.metric, IdentityMetric)
    torch.testing.assert_close(kernel.step_size / kernel.step_size[0], given_steps / 0.1)


@pytest.mark.slow
def test_random_walks_and_jumps_have_their_own_targets() -> None:
    walk = warmed(RandomWalkMetropolis(SCALES, 0.1), 16)
    assert acceptance(walk, exact(VARIANCES.sqrt())) == pytest.approx(0.234, abs=0.05)
    jump = warmed(DiscontinuousHMC(SCALES, [False, True] + 14 * [False], 0.1, 4), 16)
    assert acceptance(jump, exact(VARIANCES.sqrt())) == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(("num_warmup", "start"), [(400, 0.01), (149, 1.0), (20, 1.0)])
def test_the_diagonal_mass_is_the_inverse_variance(num_warmup: int, start: float) -> None:
    """From a far start it takes a long warm-up, from exact draws a short one."""
    kernel = HMC(SCALES, 0.01, 5, jitter=0.5)
    state, generator = kernel.init(start * exact(VARIANCES.sqrt(), 500)), torch.Generator().manual_seed(0)
    kernel = warm_up(kernel, state, num_warmup, generator, Warmup(mass="diagonal"), lambda *_: None)[0]
    assert isinstance(kernel.metric, DiagonalMetric)
    ratio = (2 * kernel.metric.log_scale).exp() * VARIANCES
    assert ((ratio > 0.8) & (ratio < 1.25)).all(), ratio


def test_the_dense_mass_is_the_inverse_covariance() -> None:
    density, covariance = correlated(0.95)
    kernel = warmed(HMC(density, 0.01, 5, jitter=0.5), 2, mass="dense")
    product = kernel.metric.root @ kernel.metric.root.T @ covariance
    torch.testing.assert_close(product, torch.eye(2, dtype=F64), atol=0.15, rtol=0)


def test_single_precision_suffices_for_a_dense_mass() -> None:
    variances = torch.logspace(-3, 3, 20)
    kernel = HMC(Density(lambda z: -0.5 * (z.square() / variances).sum(-1)), 0.01, 5, jitter=0.5)
    generator = torch.Generator().manual_seed(0)
    state = kernel.init(variances.sqrt() * torch.randn(500, 20, generator=generator))
    kernel = warm_up(kernel, state, 150, generator, Warmup(mass="dense"), lambda *_: None)[0]
    root = kernel.metric.root
    assert root.dtype == torch.float32
    whitened = root.T @ torch.diag(variances) @ root
    torch.testing.assert_close(whitened, torch.eye(20), atol=0.35, rtol=0)


def best_time(step_size: float, slowness: float = 1.0) -> float:
    """argmax_T of min_x (1 − ρ_x)/(1 + ρ_x)/(L + 6) on a normal whose coordinates turn by t / slowness.

    z has r = cos t and |z| has (√(1 − r²) + r asin r − 1) / (π/2 − 1); both are averaged over T/2, …, 3T/2.
    """
    times = torch.linspace(0.2, 8.0, 1561, dtype=F64)
    r = (torch.linspace(0.5, 1.5, 2001, dtype=F64) * times[:, None] / slowness).cos()
    distance = ((1 - r.square()).sqrt() + r * r.asin() - 1) / (math.pi / 2 - 1)
    rates = [
        (1 - rho) / (1 + rho) / (times / step_size + OVERHEAD) for rho in (r.mean(-1), distance.mean(-1))
    ]
    return float(times[torch.minimum(*rates).argmax()])


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 20])
def test_the_length_is_the_best_on_a_normal_distribution(dim: int) -> None:
    """Steps are short, so that lengths are fine enough to compare."""
    scales = torch.logspace(-1, 1, dim, dtype=F64)
    kernel = warmed(HMC(Density(lambda z: -0.5 * (z / scales).square().sum(-1)), 0.05), dim, 500,
                    target_acceptance=0.98)  # fmt: skip
    best = best_time(float(kernel.step_size))
    assert 1.2 < best < 1.8
    assert float(kernel.step_size) * kernel.num_steps == pytest.approx(best, rel=0.25)
    assert kernel.jitter == 0.5


@pytest.mark.parametrize("chains", [1, 2])
def test_a_short_warmup_of_few_chains_finds_a_length(chains: int) -> None:
    """About a quarter of the period 2π, in most of 21 warm-ups: the first values say nothing of variances."""
    times = []
    for seed in range(21):
        generator = torch.Generator().manual_seed(seed)
        kernel = HMC(NORMAL, 0.1)
        state = kernel.init(torch.randn(chains, 3, dtype=F64, generator=generator))
        settings = Warmup(mass="fixed", target_acceptance=0.98)
        tuned, _ = warm_up(kernel, state, 100, generator, settings, lambda *_: None)
        assert isinstance(tuned, HMC)
        times.append(float(tuned.step_size) * tuned.num_steps)
    assert math.pi / 4 < sorted(times)[10] < math.pi


@pytest.mark.slow
def test_trajectories_are_longer_where_the_mass_cannot_help() -> None:
    """The longer axis of a correlated normal has the variance 1.99 in units of those of the coordinates; a
    diagonal mass takes √(1 − 0.99²) of these for the scale, halfway to their variance given the other one.
    """
    kernel = warmed(HMC(correlated(0.99)[0], 0.05), 2, 500, mass="diagonal", target_acceptance=0.8)
    step = float(kernel.step_size)
    slowness = math.sqrt(1.99 / math.sqrt(1 - 0.99**2))
    assert step * kernel.num_steps == pytest.approx(best_time(step, slowness), rel=0.2)
    assert kernel.num_steps > 8


@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_the_users_jitter_comes_back(jitter: float) -> None:
    assert warmed(HMC(NORMAL, 0.1, jitter=jitter), 2, 100).jitter == jitter
    fixed = warmed(HMC(NORMAL, 0.1, 7, jitter=jitter), 2, 100)
    assert (fixed.jitter, fixed.num_steps) == (jitter, 7)


@pytest.mark.slow
def test_each_kernel_of_a_composition_is_tuned_to_its_own_target() -> None:
    kernel = warmed(Compose(HMC(SCALES, 1e-3, 5, jitter=0.5), RandomWalkMetropolis(SCALES, 1e-3)), 16)
    z = exact(VARIANCES.sqrt())
    assert acceptance(kernel, z, "acceptance_rate_0") == pytest.approx(0.8, abs=0.06)
    assert acceptance(kernel, z, "acceptance_rate_1") == pytest.approx(0.234, abs=0.06)
    for part in kernel.kernels:
        ratio = (2 * part.metric.log_scale).exp() * VARIANCES
        assert ((ratio > 0.7) & (ratio < 1.4)).all(), ratio


@pytest.mark.slow
def test_each_block_of_gibbs_is_tuned_to_its_conditional_distribution() -> None:
    others = [index for index in range(16) if index != 1]
    blocks = [(others, HMC(SCALES, 1e-3, 5, jitter=0.5)), (1, LinearSlice(SCALES, 3.0))]
    kernel = warmed(Gibbs(blocks), 16)
    assert acceptance(kernel, exact(VARIANCES.sqrt())) == pytest.approx(0.8, abs=0.06)
    ratio = (2 * kernel.kernels[0].metric.log_scale).exp() * VARIANCES[others]
    assert ((ratio > 0.7) & (ratio < 1.4)).all(), ratio


def test_a_momentum_does_not_outlive_its_mass() -> None:
    """At the end of a window the persistent momentum is forgotten, and only there."""
    momenta: list[bool] = []

    class Watched(HMC):
        def step(self, state, generator=None):  # type: ignore[no-untyped-def]
            momenta.append(state.momentum is None)
            return super().step(state, generator)

    shortest.register(Watched, lambda kernel: HMC(kernel.density, kernel.step_size, 1, kernel.metric))

    warmed(Watched(NORMAL, 0.1, 3, persistence=0.9), 2, 300)
    settled, ends = windows(300)[0][0], [end for _, end in windows(300)]  # settling has a kernel of its own
    assert [index for index, forgotten in enumerate(momenta, settled) if forgotten] == [settled, *ends]


@pytest.mark.parametrize("num_warmup", [1, 2, 5, 9, 10, 19, 20, 40])
@pytest.mark.parametrize("chains", [1, 8])
def test_a_short_warmup_still_gives_a_kernel_that_moves(num_warmup: int, chains: int) -> None:
    for kernel in (HMC(NORMAL, 0.01, 3), HMC(NORMAL, 30.0), RandomWalkMetropolis(NORMAL, 0.01)):
        assert acceptance(warmed(kernel, 5, num_warmup, chains), exact(torch.ones(5, dtype=F64))) > 0.02


def test_without_warmup_the_kernel_stays_as_it_is() -> None:
    kernel = HMC(SCALES, 0.01, 3)
    state = kernel.init(torch.zeros(4, 16, dtype=F64))
    generator = torch.Generator().manual_seed(5)
    assert warm_up(kernel, state, 0, generator, Warmup(), lambda *_: None) == (kernel, state)
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(5).get_state())


def test_warmup_leaves_the_given_kernel_alone() -> None:
    kernel = HMC(SCALES, 0.01)
    warmed(kernel, 16, 200)
    assert float(kernel.step_size) == 0.01 and isinstance(kernel.metric, IdentityMetric)
    assert (kernel.num_steps, kernel.jitter) == (10, 1.0)


@given(st.integers(0, 20_000))
def test_windows_follow_each_other_and_leave_time_for_the_step_size(num_warmup: int) -> None:
    stretches = windows(num_warmup)
    assert (len(stretches) > 0) == (num_warmup >= 20)
    if not stretches:
        return
    sizes = [end - begin for begin, end in stretches]
    assert all(later[0] == earlier[1] for earlier, later in pairwise(stretches))
    assert all(later >= 2 * earlier for earlier, later in pairwise(sizes))
    assert stretches[0][0] >= min(75, 0.1 * num_warmup) and min(sizes) >= min(25, num_warmup // 3)
    assert stretches[-1][1] == num_warmup - min(50, num_warmup // 3)


def test_windows_are_those_of_stan() -> None:
    assert windows(1000) == [(75, 100), (100, 150), (150, 250), (250, 450), (450, 950)]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(1, 4), st.booleans())
def test_moments_do_not_depend_on_the_batches(sizes: list[int], dim: int, dense: bool) -> None:
    """Shrunk towards 10⁻³ with the weight of five draws, far from zero, in single precision too."""
    generator = torch.Generator().manual_seed(sum(sizes))
    rows = 1e4 + torch.randn(sum(sizes) + 1, dim, generator=generator, dtype=F64).cumsum(0)
    moments = Moments(dense)
    for batch in rows.split([*sizes, 1]):
        moments.add(batch[:, None, :])
    count = len(rows)
    covariance = torch.atleast_2d(torch.cov(rows.T))
    expected = (count * covariance + 5e-3 * torch.eye(dim, dtype=F64)) / (count + 5)
    torch.testing.assert_close(moments.covariance(), expected if dense else expected.diagonal())


class SettlingHMC(HMC):
    """As a kernel whose mass is not tuned."""


@tuning.register
def _(kernel: SettlingHMC) -> Tuning:
    return Tuning(step_size=True, settles=True)


def test_chains_that_start_far_out_settle() -> None:
    """Where one chain needs steps a hundred times smaller than the others, it gets them, and comes in."""
    walls = Density(lambda z: -(z.square() / 2 + z**4).sum(-1))
    start = 0.5 * torch.randn(32, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    start[5] = 50.0
    for kind in (HMC, SettlingHMC):
        kernel, generator = kind(walls, step_size=0.1, num_steps=5), torch.Generator().manual_seed(1)
        tuned, state = warm_up(
            kernel, kernel.init(start), 60, generator, Warmup(mass="fixed"), lambda *_: None
        )
        assert state.position[5].abs().max() < 3
        assert tuned.num_steps == 5 and tuned.step_size.ndim == 0
    near = [i for i in range(32) if i != 5]
    assert acceptance(tuned, state.position[near]) == pytest.approx(0.8, abs=0.12)


@pytest.mark.parametrize("always", [True, False], ids=["accepted", "rejected"])
def test_a_search_without_end_stays_within_the_numbers(always: bool) -> None:
    """A step size that no transition can hold back is kept positive and finite, in single precision too."""
    density = Density(lambda z: torch.zeros_like(z[..., 0]).where((z == 0).all(-1) | always, -torch.inf))
    kernel = RandomWalkMetropolis(density, torch.tensor(1.0))
    state, generator = kernel.init(torch.zeros(4, 2)), torch.Generator().manual_seed(0)
    tuned, _ = warm_up(kernel, state, 400, generator, Warmup(), lambda *_: None)
    assert tuned.step_size.isfinite() and tuned.step_size > 0
