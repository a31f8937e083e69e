"""From weights to bounds."""

from __future__ import annotations

import math

import pytest
import torch

from hmcvi import Bound, Weights, elbo, iwae
from hmcvi.kernels import hamiltonian_chain
from hmcvi.objectives import leave_one_out, power_mean
from tests.support.problems import F64, LinearGaussian, perturb
from tests.support.statistics import assert_mean, mean_and_error

MODEL = LinearGaussian()


def test_power_mean_is_the_log_of_a_mean_of_powers() -> None:
    log_weight = torch.tensor([0.3, -1.0, 2.0], dtype=F64)
    for power in (1.0, 0.5, -2.0):
        expected = log_weight.exp().pow(power).mean().pow(1 / power).log()
        torch.testing.assert_close(power_mean(log_weight, power), expected)
    assert power_mean(torch.tensor([1000.0, 1000.0 + math.log(3)]), 1.0).item() == pytest.approx(
        1000 + math.log(2)
    )


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_gradients_of_weights_below_rounding_are_zero_and_not_denormal(dtype: torch.dtype) -> None:
    """∂L/∂log w = softmax; shares below ε² change no digit, and denormal ones are slow."""
    log_weight = torch.tensor([[0.0], [-0.1], [-30.0], [-95.0], [-720.0]], dtype=dtype, requires_grad=True)
    bound = power_mean(log_weight, 1.0)
    torch.testing.assert_close(bound, log_weight.logsumexp(0) - math.log(5), rtol=0, atol=0)
    (share,) = torch.autograd.grad(bound.sum(), log_weight)
    torch.testing.assert_close(share, log_weight.softmax(0))
    smallest = share[share > 0].min()
    assert share[-1] == 0 and smallest > torch.finfo(dtype).eps ** 2 / 5


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_leave_one_out_leaves_one_out(power: float) -> None:
    log_weight = torch.randn(4, 3, dtype=F64)
    left_out = leave_one_out(log_weight, power)
    for k in range(4):
        others = log_weight[[j for j in range(4) if j != k]]
        torch.testing.assert_close(left_out[k], power_mean(others, power))


def test_more_samples_give_a_tighter_bound() -> None:
    """E[IWAE_K] rises with K towards log p(x)."""
    torch.manual_seed(0)
    vae, x = MODEL.vae(), MODEL.data()
    with torch.no_grad():
        log_weight = vae.log_weights(x, 64 * 2000).view(64, 2000)
    means, errors = zip(
        *(mean_and_error(power_mean(log_weight[:k], 1.0)) for k in (1, 4, 16, 64)), strict=True
    )
    for lower, higher, error in zip(means[:-1], means[1:], errors[:-1], strict=True):
        assert higher - lower > 4.5 * error
    assert means[-1] < MODEL.log_evidence(x) < means[-1] + 0.1


@pytest.mark.parametrize("width", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("accept", [None, "nn"])
def test_noise_has_no_mean(width: float, accept: str | None) -> None:
    """Left out or not, it does not move the ELBO."""
    torch.manual_seed(0)
    chain = perturb(hamiltonian_chain(2, 4, 2, 2, accept=accept, partial=True, hidden=(8,)))
    with torch.no_grad():
        weights = MODEL.vae(chain, width).weights(MODEL.data(2), 20_000)
    assert_mean(weights.noise, 0.0)


def test_leaving_out_the_noise_of_a_narrow_start_lowers_the_variance() -> None:
    """There −log q0 varies more than log p.  Near the posterior the two cancel, and leaving one out costs."""
    torch.manual_seed(0)
    with torch.no_grad():
        weights = MODEL.vae(width=0.5).weights(MODEL.data(2), 20_000)
    single = Weights(*(part[None] for part in weights[:3]))
    bound = Bound(known_entropies=True)(single)
    assert_mean(bound - elbo(single), 0.0)
    assert (bound.var(0) < 0.5 * elbo(single).var(0)).all()


def test_importance_weights_keep_their_noise() -> None:
    torch.manual_seed(0)
    log_weight, noise = torch.randn(2, 5, 3, dtype=F64).unbind()
    weights = Weights(log_weight, torch.zeros_like(noise), noise)
    torch.testing.assert_close(Bound(0.0, known_entropies=True)(weights), iwae(weights))


def test_running_baseline_learns_only_in_training() -> None:
    log_choice = torch.zeros(1, 3, dtype=F64, requires_grad=True)
    weights = Weights(torch.full((1, 3), 2.0, dtype=F64), log_choice, torch.zeros(1, 3, dtype=F64))
    bound = Bound(decay=0.5)
    bound.eval()(weights)
    assert bound.running_gain == 0 and bound.num_updates == 0
    bound.train()(weights)
    assert bound.running_gain == 2
    bound(weights._replace(log_weight=torch.tensor([[4.0, -torch.inf, 4.0]], dtype=F64)))
    assert bound.running_gain == 3 and bound.num_updates == 2


def test_the_baseline_is_saved_with_the_model() -> None:
    assert set(Bound().state_dict()) == {"running_gain", "num_updates"}


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="got 'none'"):
        Bound(acceptance_gradient="none")
    with pytest.raises(ValueError, match="got 1"):
        Bound(decay=1.0)
