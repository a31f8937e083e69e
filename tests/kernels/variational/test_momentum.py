"""Drawing, refreshing and dropping the momentum."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from hmcvi import Context, Phase
from hmcvi.kernels import (
    CholeskyMetric,
    DrawMomentum,
    DropMomentum,
    Persistence,
    RefreshMomentum,
    ReverseMomentum,
)
from tests.contracts.members import MetricExample, metrics
from tests.support.problems import F64, Mixture, perturb
from tests.support.statistics import assert_mean

DENSITY = Mixture().density
ROOT = torch.tensor([[1.3, 0.0], [-0.5, 0.8]], dtype=F64)
METRIC = CholeskyMetric(ROOT)
LAW = MultivariateNormal(torch.zeros(2, dtype=F64), ROOT @ ROOT.T)


def phase(count: int) -> Phase:
    torch.manual_seed(0)
    return Phase(torch.randn(count, 2, dtype=F64), METRIC.sample(torch.empty(count, 2, dtype=F64)))


@pytest.mark.parametrize("example", metrics(), ids=lambda e: type(e.metric).__name__)
def test_drawing_pays_the_density_of_the_draw(example: MetricExample) -> None:
    distribution = MultivariateNormal(torch.zeros(3, dtype=F64), example.matrix)
    transition = DrawMomentum(example.metric)(Phase(torch.zeros(1000, 3, dtype=F64)), DENSITY)
    price = -distribution.log_prob(transition.state.momentum)
    torch.testing.assert_close(transition.log_ratio, price, rtol=1e-12, atol=1e-12)
    # without its noise the price is the entropy of the distribution, the same for every draw
    entropy = transition.log_ratio - transition.noise
    torch.testing.assert_close(entropy, distribution.entropy().expand(1000), rtol=1e-12, atol=1e-12)


def test_dropping_earns_the_density_of_the_dropped() -> None:
    start = phase(100)
    transition = DropMomentum(METRIC)(start, DENSITY)
    torch.testing.assert_close(transition.log_ratio, LAW.log_prob(start.momentum))
    assert transition.state.momentum is None


@pytest.mark.parametrize("alpha", [-0.7, 0.0, 0.5, 0.95])
def test_refreshing_draws_the_autoregression(alpha: float) -> None:
    """u | v ~ N(α v, (1−α²) M)"""
    start = phase(3)
    many = Phase(*(part.expand(40_000, 3, 2) for part in start[:2]))
    u = RefreshMomentum(METRIC, Persistence(alpha, learned=False).double())(many, DENSITY).state.momentum
    residual = u - alpha * start.momentum
    assert_mean(residual, 0.0)
    assert_mean(residual[..., :, None] * residual[..., None, :], (1 - alpha**2) * ROOT @ ROOT.T)


@pytest.mark.parametrize("alpha", [-0.7, 0.0, 0.5, 0.95])
def test_exact_refreshment_pays_the_change_of_the_stationary_distribution(alpha: float) -> None:
    """r(v|u) = q(v|u), so that log_ratio = log m(v) − log m(u)."""
    start = phase(200)
    transition = RefreshMomentum(METRIC, Persistence(alpha, learned=False).double())(start, DENSITY)
    u, v = transition.state.momentum, start.momentum
    torch.testing.assert_close(transition.log_ratio, LAW.log_prob(v) - LAW.log_prob(u))
    covariance = (1 - alpha**2) * ROOT @ ROOT.T
    backward = MultivariateNormal(alpha * u, covariance).log_prob(v)
    forward = MultivariateNormal(alpha * v, covariance).log_prob(u)
    torch.testing.assert_close(transition.log_ratio, backward - forward, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("alpha", [-0.7, 0.0, 0.5])
def test_learned_refreshment_pays_reverse_minus_forward(alpha: float) -> None:
    start = phase(200)
    reverse = perturb(ReverseMomentum(2, 0, (8,), sees_refreshed=True))
    step = RefreshMomentum(METRIC, Persistence(alpha, learned=False).double(), reverse, time=0.6)
    transition = step(start, DENSITY)
    u, v = transition.state.momentum, start.momentum
    forward = MultivariateNormal(alpha * v, (1 - alpha**2) * ROOT @ ROOT.T).log_prob(u)
    torch.testing.assert_close(
        transition.log_ratio, reverse_log_prob(reverse, v, start.position, 0.6, u) - forward
    )
    assert_mean(transition.noise, 0.0)


def reverse_log_prob(reverse: ReverseMomentum, v: Tensor, z: Tensor, time: float, u: Tensor) -> Tensor:
    """N(v; L loc, L diag(scale²) Lᵀ), dense, from the outputs of the network."""
    whitened = torch.linalg.solve_triangular(ROOT, u.T, upper=False).T
    inputs = torch.cat([z, torch.full_like(z[:, :1], time), whitened], -1)
    loc, log_scale = reverse.net(Context(None), inputs).chunk(2, -1)
    root = ROOT @ torch.diag_embed(log_scale.exp())
    return MultivariateNormal(loc @ ROOT.T, scale_tril=root).log_prob(v)


def test_untrained_reverse_model_is_that_of_stationarity() -> None:
    start = phase(100)
    reverse = ReverseMomentum(2, 0, (8,)).double()
    learned = DropMomentum(METRIC, reverse)(start, DENSITY)
    torch.testing.assert_close(learned.log_ratio, LAW.log_prob(start.momentum))


def test_reverse_model_is_normalised() -> None:
    torch.manual_seed(0)
    reverse = perturb(ReverseMomentum(2, 3, (8,)))
    proposal = MultivariateNormal(torch.zeros(2, dtype=F64), 9 * torch.eye(2, dtype=F64))
    v = proposal.sample((100_000,))
    z, x = torch.randn(2, dtype=F64).expand(100_000, 2), torch.randn(3, dtype=F64)
    log_r = reverse.log_prob(v, z, METRIC, 0.5, Context(x))
    assert_mean((log_r - proposal.log_prob(v)).exp(), 1.0)


@pytest.mark.parametrize("alpha", [1.0, -1.0, 1.5])
def test_persistence_beyond_one_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {alpha}")):
        Persistence(alpha)


def test_persistence_is_learned_or_fixed() -> None:
    assert [p.numel() for p in Persistence(0.3).parameters()] == [1]
    assert not list(Persistence(0.3, learned=False).parameters())
    assert Persistence(0.3)().item() == pytest.approx(0.3)
