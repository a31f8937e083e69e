"""Reverse momentum models: densities, Gaussian in the limit, better where the truth is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from hmcvi import Context, Density, Phase
from hmcvi.kernels import (
    CholeskyMetric,
    FlowMomentum,
    GaussianMomentum,
    IdentityMetric,
    Metric,
    MixtureMomentum,
    ReverseMomentum,
    hamiltonian_chain,
)
from hmcvi.kernels.variational.reverse import MOMENTUM_MODELS
from tests.contracts.members import MOMENTUM_MODELS as SMALL_MODELS
from tests.support.problems import F64, perturb
from tests.support.statistics import mean_and_error

METRIC = CholeskyMetric(torch.tensor([[1.3, 0.0], [-0.5, 0.8]], dtype=F64))


def log_prob(reverse: ReverseMomentum, v: Tensor, metric: Metric, z: Tensor | None = None) -> Tensor:
    """log r(v | z, x) at a fixed x and, unless it is given, z."""
    z = torch.linspace(0.4, -0.7, v.shape[-1]).to(v).expand(v.shape) if z is None else z
    return reverse.log_prob(v, z, metric, 0.5, Context(torch.tensor([0.3, -1.0, 0.5]).to(v)))


def grid(dim: int, half: float, side: int) -> tuple[Tensor, float]:
    """Points of a cube and the volume of each.  [side^dim, dim]"""
    ticks = torch.linspace(-half, half, side, dtype=F64)
    points = torch.cartesian_prod(*[ticks] * dim).reshape(-1, dim)
    return points, (2 * half / (side - 1)) ** dim


@pytest.mark.parametrize("name", MOMENTUM_MODELS)
def test_the_density_integrates_to_one_in_the_plane(name: str) -> None:
    torch.manual_seed(0)
    reverse = perturb(ReverseMomentum(2, 3, (8,), law=SMALL_MODELS[name]()), scale=0.3)
    points, volume = grid(2, 12.0, 601)
    with torch.no_grad():
        density = log_prob(reverse, points, METRIC).exp()
    assert density.sum() * volume == pytest.approx(1.0, abs=1e-4)


def test_the_weights_of_the_gaussian_model_keep_their_names() -> None:
    parts = ("from_inputs.weight", "from_inputs.bias", "from_context.weight", "body.1.weight", "body.1.bias")
    assert list(ReverseMomentum(2, 3, (8,)).state_dict()) == [f"net.{part}" for part in parts]


@pytest.mark.parametrize("num_components", [1, 2, 5])
def test_the_mixture_integrates_to_one_on_the_line(num_components: int) -> None:
    torch.manual_seed(0)
    reverse = perturb(ReverseMomentum(1, 3, (8,), law=MixtureMomentum(1, num_components)), scale=0.5)
    points, volume = grid(1, 15.0, 2001)
    with torch.no_grad():
        density = log_prob(reverse, points, IdentityMetric()).exp()
    assert density.sum() * volume == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("dim", [1, 2, 20])
def test_a_mixture_of_one_is_the_gaussian(dim: int) -> None:
    torch.manual_seed(0)
    white, outputs = torch.randn(7, dim, dtype=F64), torch.randn(7, 2 * dim, dtype=F64)
    one = MixtureMomentum(dim, 1)(white, torch.cat([outputs, torch.randn(7, 1, dtype=F64)], -1))
    torch.testing.assert_close(one, GaussianMomentum(dim)(white, outputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dim", [2, 20])
def test_the_untrained_flow_is_the_gaussian_whatever_its_features(dim: int) -> None:
    torch.manual_seed(0)
    model = FlowMomentum(dim, 6).double()
    white, outputs = torch.randn(7, dim, dtype=F64), torch.randn(7, model.num_outputs, dtype=F64)
    expected = GaussianMomentum(dim)(white, outputs[:, : 2 * dim])
    torch.testing.assert_close(model(white, outputs), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dim", [2, 20])
@pytest.mark.parametrize("name", MOMENTUM_MODELS)
def test_untrained_models_are_as_good_as_that_of_stationarity(name: str, dim: int) -> None:
    torch.manual_seed(0)
    reverse = ReverseMomentum(dim, 3, (32,), law=MOMENTUM_MODELS[name](dim, (32,))).double()
    v = torch.randn(2000, dim, dtype=F64)
    with torch.no_grad():
        loss = Normal(0.0, 1.0).log_prob(v).sum(-1) - log_prob(reverse, v, IdentityMetric())
    mean, error = mean_and_error(loss)
    assert mean < 0.01 + 4.5 * error and error < 0.01


def test_components_of_an_untrained_mixture_are_pulled_apart() -> None:
    torch.manual_seed(0)
    reverse = ReverseMomentum(2, 3, (8,), law=MixtureMomentum(2, 4)).double()
    log_prob(reverse, torch.randn(100, 2, dtype=F64), METRIC).sum().backward()
    gradient = reverse.net.output.bias.grad.unflatten(0, (4, -1))
    assert (gradient.std(0) > 1e-3).all()


@pytest.mark.parametrize("seed", range(5))
def test_every_momentum_is_conditioned_on_every_other(seed: int) -> None:
    """Two triangular layers of the same order, which random orders may give, would leave zeros."""
    torch.manual_seed(seed)
    flow = perturb(FlowMomentum(3, 30)).flow
    context, target = Context(torch.randn(30, dtype=F64)), Density(lambda z: z.sum(-1))
    jacobian = torch.autograd.functional.jacobian(
        lambda w: flow(Phase(w), target, context).state.position, torch.randn(3, dtype=F64)
    )
    assert (jacobian != 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("name", MOMENTUM_MODELS)
def test_samples_of_a_batch_share_the_data(name: str, dtype: torch.dtype) -> None:
    """v, z: [K, B, d] with x: [B, D] is each of the K B pairs alone."""
    torch.manual_seed(0)
    reverse = perturb(ReverseMomentum(2, 3, (8,), law=MOMENTUM_MODELS[name](2, (8,)))).to(dtype)
    v, z = torch.randn(2, 4, 5, 2, dtype=dtype)
    x = torch.randn(5, 3, dtype=dtype)
    metric = IdentityMetric()
    together = reverse.log_prob(v, z, metric, 0.5, Context(x))
    alone = reverse.log_prob(v[3, 1], z[3, 1], metric, 0.5, Context(x[1]))
    assert together.shape == (4, 5) and together.dtype == dtype
    torch.testing.assert_close(together[3, 1], alone)


def test_what_the_models_refuse() -> None:
    with pytest.raises(ValueError, match="at least 2, got 1; use reverse='mixture'"):
        hamiltonian_chain(1, 3, 1, 2, reverse="flow")
    with pytest.raises(ValueError, match=r"got hidden=\(\)"):
        hamiltonian_chain(2, 3, 1, 2, hidden=(), reverse="flow")
    with pytest.raises(ValueError, match="got 0"):
        MixtureMomentum(2, 0)


# Starts whose end does not say by a Gaussian where they came from: v_T = (z_T − z_0)/τ where forces are weak.


def two_clusters(count: int) -> Tensor:
    side = 4.0 * torch.randint(2, (count, 1)) - 2.0
    return 0.2 * torch.randn(count, 2) + torch.cat([side, torch.zeros(count, 1)], -1)


def banana(count: int) -> Tensor:
    first, noise = torch.randn(2, count)
    return torch.stack([first, first.square() - 1 + 0.2 * noise], -1)


def trained_gain(reverse: str, starts: Callable[[int], Tensor]) -> Tensor:
    """Σ log_ratio of 5000 chains after their reverse model was trained.  [5000]"""
    torch.manual_seed(0)
    chain = hamiltonian_chain(
        2, 0, 1, 2, mass="identity", hidden=(32,), initial_step_size=0.5, reverse=reverse
    )
    target = Density(lambda z: -0.5 * (z / 3).square().sum(-1))
    model = next(part for part in chain.modules() if isinstance(part, ReverseMomentum))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(250):
        loss = -chain(Phase(starts(250)), target).log_ratio.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.manual_seed(1)
    with torch.no_grad():
        return chain(Phase(starts(5000)), target).log_ratio


@pytest.mark.slow
@pytest.mark.parametrize(("reverse", "starts"), [("mixture", two_clusters), ("flow", banana)])
def test_a_flexible_reverse_model_tightens_the_bound(reverse: str, starts: Callable[[int], Tensor]) -> None:
    """The same chains, priced by either model: everything else in the bound is equal."""
    gain, error = mean_and_error(trained_gain(reverse, starts) - trained_gain("gaussian", starts))
    assert gain > 5 * error and gain > 0.2, f"{gain:.3f} ± {error:.3f}"
