"""Warm-up from starts that nobody chose: far away, badly scaled, some of them lost."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hmcvi import Density, SamplingWarning, sample
from hmcvi.adaptation import WarmupError
from hmcvi.adaptation.fisher import FisherMoments
from hmcvi.adaptation.lagging import keeping_up
from hmcvi.adaptation.low_rank import LowRank
from hmcvi.adaptation.mass import inverse_metric
from hmcvi.adaptation.settling import approach
from hmcvi.adaptation.warmup import Warmup, warm_up
from hmcvi.internal.linalg import geometric_mean
from hmcvi.kernels import HMC, CholeskyMetric, Kernel, SpectralMetric
from tests.support.problems import F64

DIM = 5
NORMAL = Density(lambda z: -0.5 * z.square().sum(-1), dim=2)


def rough_covariance(seed: int, dim: int = DIM, decades: float = 2.0) -> Tensor:
    """Correlated, with scales from 10^−decades to 10^decades."""
    generator = torch.Generator().manual_seed(seed)
    root = 0.5 * torch.randn(dim, dim, dtype=F64, generator=generator).tril(-1) + torch.eye(dim, dtype=F64)
    scale = torch.logspace(-decades, decades, dim, dtype=F64)
    return scale[:, None] * (root @ root.T) * scale


def assert_same_shape(found: Tensor, covariance: Tensor) -> None:
    """L⁻¹ Σ L⁻ᵀ = I for the root L of the true covariance."""
    root = torch.linalg.cholesky(covariance)
    half = torch.linalg.solve_triangular(root, found, upper=False)
    whitened = torch.linalg.solve_triangular(root, half.mT, upper=False)
    torch.testing.assert_close(whitened, torch.eye(len(root), dtype=F64), rtol=0, atol=1e-3)


def uniform(chains: int, dim: int, seed: int = 0) -> Tensor:
    return 4 * torch.rand(chains, dim, dtype=F64, generator=torch.Generator().manual_seed(seed)) - 2


def warmed(density: Density, start: Tensor, num_warmup: int, **settings: Any) -> tuple[Kernel, Any]:
    kernel, generator = HMC(density, 0.1), torch.Generator().manual_seed(1)
    warmup = Warmup(**settings)
    return warm_up(kernel, kernel.init(start), num_warmup, generator, warmup, lambda *_: None)


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6))
def test_the_geometric_mean_solves_its_equation(seed: int, dim: int) -> None:
    covariance, precision = (rough_covariance(seed + i, dim, 0.5) for i in range(2))
    mean = geometric_mean(covariance, precision)
    torch.testing.assert_close(mean, mean.mT)
    torch.testing.assert_close(mean @ precision @ mean, covariance)


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_on_a_normal_density_the_mass_is_exact_wherever_the_draws_are(seed: int) -> None:
    """Far from where it has its mass, and with hardly more draws than dimensions."""
    covariance, moments = rough_covariance(seed, decades=0.5), FisherMoments()
    draws = 100 + uniform(4 * DIM, DIM, seed)
    moments.add(draws, -torch.linalg.solve(covariance, draws.T).T)
    found = moments.covariance()
    assert found is not None
    assert_same_shape(found, covariance)


def test_too_few_draws_are_no_mass_and_more_of_them_a_diagonal_one() -> None:
    for count, ndim in ((4, None), (12, 1), (20, 2)):
        moments, draws = FisherMoments(), uniform(count, DIM)
        moments.add(draws, -draws)
        found = moments.covariance()
        assert found is None if ndim is None else found is not None and found.ndim == ndim


def test_a_badly_scaled_regression_is_reached_in_few_gradients() -> None:
    """log γ begins 10⁶ below its typical value; dense and diagonal masses differ only in what they cost."""
    covariance = rough_covariance(3)
    precision, count = torch.linalg.inv(covariance), 0

    def log_prob(z: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return -0.5 * ((z - 10) @ precision * (z - 10)).sum(-1)

    kernel, state = warmed(Density(log_prob), uniform(16, DIM), 200)
    assert count < 1500 and isinstance(kernel.metric, CholeskyMetric)
    squared = -2 * state.log_prob  # χ² with five degrees of freedom
    assert squared.max() < 40 and 1 < squared.median() < 12
    assert_same_shape(torch.linalg.inv(kernel.metric.root @ kernel.metric.root.T), covariance)


def test_starts_beyond_the_reach_of_trajectories_are_approached() -> None:
    """log γ = −e^{100 |z|} + … reaches −10⁸⁶ where it starts; chains within reach are not touched."""
    density = Density(lambda z: -(100 * z.abs()).exp().sum(-1) - 0.5 * z.square().sum(-1))
    start = torch.linspace(-2, 2, 32, dtype=F64)[:, None].expand(32, 2).contiguous()
    state = HMC(density, 0.1).init(start)
    near = approach(density, state)
    assert state.log_prob.min() < -1e80 and near.log_prob.min() > -1e10
    within = state.log_prob > -1e10
    assert within.any() and torch.equal(near.position[within], start[within])
    log_prob, grad = density.value_and_grad(near.position)
    assert torch.equal(near.log_prob, log_prob) and torch.equal(near.grad, grad)
    _, arrived = warmed(density, start, 100)
    assert arrived.log_prob.min() > -20


def test_curvature_that_changes_raises_the_acceptance() -> None:
    """Along y = x² steps must be short where the valley bends; a normal density needs none of that."""
    bent = Density(lambda z: -0.5 * (z[..., 0] - 1) ** 2 - 0.5 * ((z[..., 1] - z[..., 0] ** 2) / 0.2) ** 2)
    for density, at_least, at_most in ((bent, 0.86, 1.0), (NORMAL, 0.7, 0.93)):
        kernel, state = warmed(density, uniform(32, 2), 400)
        generator, rates = torch.Generator().manual_seed(2), []
        for _ in range(100):
            state, info = kernel.step(state, generator)
            rates.append(info["acceptance_rate"].mean())
        assert at_least < torch.stack(rates).mean() < at_most
    fixed, _ = warmed(bent, uniform(32, 2), 400, target_acceptance=0.8)
    assert fixed.step_size > warmed(bent, uniform(32, 2), 400)[0].step_size


def lost_mode(z: Tensor) -> Tensor:
    """N(0, I), and at 50 a narrow mode that is e²⁰⁰ times lower."""
    return torch.logaddexp(-0.5 * z.square().sum(-1), -200 - 50 * (z - 50).square().sum(-1))


def test_a_chain_that_lags_is_left_out_restarted_and_counted() -> None:
    start = uniform(16, 2)
    start[3] = 50.0
    with pytest.warns(SamplingWarning, match="1 chain lagged far behind during warm-up"):
        draws = sample(HMC(Density(lost_mode), 0.1), start, 300, 200, progress=False)
    assert draws.position.abs().max() < 10 and draws.end.settings["restarted"] == 1
    alone = sample(HMC(Density(lost_mode), 0.1), uniform(16, 2), 300, 200, progress=False, check=False)
    assert "restarted" not in alone.end.settings
    ratio = float(draws.kernel.step_size / alone.kernel.step_size)  # type: ignore[union-attr]
    assert 0.5 < ratio < 2


def test_chains_with_densities_of_their_own_stay_where_they_belong() -> None:
    center = torch.zeros(16, 1, dtype=F64)
    center[3] = 100.0
    density = Density(lambda z, c: -0.5 * (z - c).square().sum(-1) - 10 * c[..., 0], center)
    draws = sample(HMC(density, 0.1), center.expand(16, 2), 100, 100, progress=False, check=False)
    assert (draws.position[3] - 100).abs().max() < 10 and "restarted" not in draws.end.settings


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(0, 100))
def test_chains_of_one_normal_density_keep_up(chains: int, seed: int) -> None:
    draws = torch.randn(chains, 8, generator=torch.Generator().manual_seed(seed))
    log_prob = -0.5 * draws.square().sum(-1)
    assert keeping_up(log_prob, 8).all()
    lost = torch.cat([log_prob, torch.tensor([-math.inf, -1e4])])
    assert chains < 8 or not keeping_up(lost, 8)[-2:].any()


def test_a_warmup_that_collapses_stops_and_says_what_to_try() -> None:
    """An estimate is no density: however short the steps, its noise has them rejected."""
    noise, count = torch.Generator().manual_seed(0), 0

    def log_prob(z: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return -0.5 * z.square().sum(-1) + 5 * torch.randn(z.shape[:-1], dtype=F64, generator=noise)

    with (
        pytest.warns(SamplingWarning, match="gave other values when it was called again"),
        pytest.raises(WarmupError, match=r"collapsed: .* has the same value whenever it is called"),
    ):
        sample(HMC(Density(log_prob), 0.1), uniform(16, 2), 500, 500, progress=False)
    assert count < 20_000


@pytest.mark.slow
def test_starts_that_nobody_gave_converge_on_a_hierarchy() -> None:
    """Three lines, no settings: eight groups of a non-centred hierarchy."""
    y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def log_prob(v: dict[str, Tensor]) -> Tensor:
        tau = v["log_tau"].exp()
        theta = v["mu"][..., None] + tau[..., None] * v["eta"]
        prior = -0.5 * (v["mu"] / 5) ** 2 - torch.log1p((tau / 5) ** 2) + v["log_tau"]
        return prior - 0.5 * v["eta"].square().sum(-1) - 0.5 * ((y - theta) / sigma).square().sum(-1)

    density = Density(log_prob, shapes={"mu": (), "log_tau": (), "eta": (8,)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = sample(HMC(density, 0.1), num_chains=16, num_samples=500, num_warmup=500, progress=False)
    assert abs(float(draws["mu"].mean()) - 4.39) < 0.4


def test_in_many_dimensions_the_directions_that_differ_are_found() -> None:
    """Scales over two decades and four directions with variances from 1/100 to 100 of them."""
    dim, generator = 200, torch.Generator().manual_seed(0)
    scale = torch.logspace(-1, 1, dim, dtype=F64)
    vectors = torch.linalg.qr(torch.randn(dim, 4, dtype=F64, generator=generator)).Q
    values = torch.tensor([100.0, 30.0, 1 / 30, 1 / 100], dtype=F64)
    draws = torch.randn(300, dim, dtype=F64, generator=generator)
    draws = scale * (draws + (draws @ vectors * (values.sqrt() - 1)) @ vectors.mT)
    whitened = draws / scale
    moments = FisherMoments()
    moments.add(draws, -(whitened + (whitened @ vectors * (1 / values - 1)) @ vectors.mT) / scale)
    found = moments.covariance()
    assert isinstance(found, LowRank) and found.values.shape == (4,)
    metric = inverse_metric(found, draws)
    assert isinstance(metric, SpectralMetric)
    whitened = draws @ metric.color(torch.eye(dim, dtype=F64)).mT  # Lᵀ z ~ N(0, I)
    variances = torch.linalg.eigvalsh(whitened.mT @ whitened / len(draws))
    assert variances.max() < 2 * (1 + (dim / 300) ** 0.5) ** 2  # 2 for what the four leave in the scales
    diagonal = FisherMoments(dense=False)
    diagonal.add(draws, -draws)
    assert isinstance(diagonal.covariance(), Tensor)
