"""Fits by Rényi divergences: exact for normal distributions, else as by quadrature; bounds in order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from hmcvi import Density
from hmcvi.evidence import fit_normal, fit_renyi
from tests.support.problems import F64

MEAN = torch.tensor([30.0, -2.0], dtype=F64)
ROOT = torch.tensor([[2.0, 0.0], [0.4, 0.05]], dtype=F64)
TWO = MixtureSameFamily(
    Categorical(torch.tensor([0.3, 0.7], dtype=F64)),
    Normal(torch.tensor([-2.0, 1.5], dtype=F64), torch.tensor([0.6, 1.2], dtype=F64)),
)
TARGET = Density(lambda z: TWO.log_prob(z[..., 0]) + 1.0)


@pytest.mark.parametrize("alpha", [0.9, 0.5, 0.0, -1.0])
def test_a_normal_density_is_found_exactly(alpha: float) -> None:
    """Where q is exact all weights are the same, and nothing is left of the noise."""
    distribution = torch.distributions.MultivariateNormal(MEAN, scale_tril=ROOT)
    fit = fit_renyi(Density(lambda z: distribution.log_prob(z) + 1.5), torch.zeros(2, dtype=F64), alpha)
    torch.testing.assert_close(fit.mean, MEAN, rtol=1e-3, atol=0)
    torch.testing.assert_close(fit.covariance, ROOT @ ROOT.T, rtol=1e-2, atol=1e-4)
    assert float(fit.log_zeta) == pytest.approx(1.5, abs=1e-3)


def optimum(alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and standard deviation of q with the moments of q^α p^{1−α}, and L_α, on a grid."""
    x = torch.linspace(-15, 15, 20001, dtype=F64)
    log_p, mean, scale = TWO.log_prob(x), torch.zeros((), dtype=F64), torch.full((), 2.5, dtype=F64)
    for _ in range(300):
        both = alpha * Normal(mean, scale).log_prob(x) + (1 - alpha) * log_p
        weight = both.softmax(0)
        new = weight @ x
        variance = weight @ (x - new).square()
        mean, scale = (mean + new) / 2, ((scale.square() + variance) / 2).sqrt()
    bound = (both.logsumexp(0) + (x[1] - x[0]).log()) / (1 - alpha)
    return mean, scale, bound + 1.0


@pytest.mark.parametrize("alpha", [0.5, 0.0, -1.0])
def test_two_modes_are_fitted_as_by_quadrature(alpha: float) -> None:
    fits = fit_renyi(TARGET, torch.tensor([[-3.0], [2.0]], dtype=F64), alpha)
    for found, exact in zip((fits.mean, fits.stddev, fits.log_zeta), optimum(alpha), strict=True):
        torch.testing.assert_close(found.flatten(), exact.expand(2), rtol=0, atol=0.05)


def test_bounds_are_in_order_and_fits_widen() -> None:
    start = torch.ones(1, dtype=F64)
    fits = [fit_renyi(TARGET, start, alpha) for alpha in (1.0, 0.5, -1.0)]
    narrow, between, wide = (float(fit.stddev) for fit in fits)
    assert narrow < between < wide
    assert float(fits[0].log_zeta) < float(fits[1].log_zeta) < 1.0 < float(fits[2].log_zeta)
    torch.testing.assert_close(fits[0].mean, fit_normal(TARGET, start).mean)


def test_independent_scales_stay_independent() -> None:
    target = Density(lambda z: TARGET.log_prob(z[..., :1]) + TARGET.log_prob(z[..., 1:] / 10))
    fit = fit_renyi(target, torch.ones(2, dtype=F64), alpha=0.0, full_rank=False)
    scale = TWO.stddev * torch.tensor([1.0, 10.0], dtype=F64)
    torch.testing.assert_close(fit.root, torch.diag(fit.stddev))
    torch.testing.assert_close(fit.stddev, scale, rtol=0.05, atol=0)


def test_misuse_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="alpha must be at most 1, got 2"):
        fit_renyi(TARGET, torch.zeros(1, dtype=F64), alpha=2.0)
    with pytest.raises(ValueError, match="num_samples must be at least 2"):
        fit_renyi(TARGET, torch.zeros(1, dtype=F64), num_samples=1)
