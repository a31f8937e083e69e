"""Training the chain alone closes the gap that the encoder left."""

from __future__ import annotations

import pytest
import torch

from hmcvi.kernels import hamiltonian_chain
from tests.support.problems import LinearGaussian
from tests.support.statistics import Z, mean_and_error


@pytest.mark.slow
@pytest.mark.parametrize("partial", [False, True])
def test_trained_refinement_closes_the_gap_of_a_wide_encoder(partial: bool) -> None:
    """Encoder and decoder fixed, encoder twice too wide: at least 90 % of log p(x) − ELBO goes."""
    model = LinearGaussian()
    torch.manual_seed(0)
    chain = hamiltonian_chain(
        2, 4, num_hmc=3, num_leapfrog=4, partial=partial, hidden=(32,), initial_step_size=0.15
    )
    vae, x = model.vae(chain), model.data(64)
    plain, plain_error = gap(model, model.vae())
    optimiser = torch.optim.Adam(chain.parameters(), lr=5e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 700)
    for _ in range(700):
        loss = -vae.bound(x).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        decay.step()
    trained, error = gap(model, vae)
    assert trained >= -Z * error, "an ELBO above the evidence"
    assert trained + Z * error < 0.1 * (plain - Z * plain_error), f"{trained} of {plain} is left"


@torch.no_grad()
def gap(model: LinearGaussian, vae: torch.nn.Module) -> tuple[float, float]:
    """log p(x) − E[log w], averaged over fresh data, and its standard error."""
    x = model.data(2000, seed=2)
    mean, error = mean_and_error((model.log_evidence(x) - vae.log_weights(x, 20)).mean(0))
    return mean.item(), error.item()
