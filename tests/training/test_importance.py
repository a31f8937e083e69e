"""The likelihood from shared importance samples is that of numerical integration."""

from __future__ import annotations

import pytest
import torch

from hmcvi.models import VAE
from hmcvi.training.importance import shared_importance_nll


@pytest.mark.parametrize("num_samples", [20_000, 20_003])
def test_against_quadrature(num_samples: int) -> None:
    torch.manual_seed(0)
    model = VAE(data_dim=6, latent_dim=1, hidden=(8,)).double()
    x = (torch.rand(3, 4, 6) < 0.5).double()
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)[:, None, None, None]
    with torch.no_grad():
        exact = -torch.logsumexp(model.log_joint(z, x) + torch.log(z[1] - z[0]).squeeze(), 0)
    estimate = shared_importance_nll(model, x, num_samples)
    assert estimate.nll.shape == x.shape[:2]
    # twelve deviates, none beyond 4: a false alarm in a thousand seeds, and the seed is fixed
    assert ((estimate.nll - exact).abs() < 4 * estimate.std_error).all()
    assert (estimate.std_error < 0.02).all() and (estimate.ess > 1000).all()


def test_grey_values_are_refused() -> None:
    model = VAE(data_dim=6, latent_dim=1, likelihood="gaussian", hidden=(8,))
    with pytest.raises(ValueError, match="gaussian"):
        shared_importance_nll(model, torch.rand(2, 3, 6), 10)
