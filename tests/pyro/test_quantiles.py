"""Quantiles of weighted draws."""

from __future__ import annotations

import pyro
import torch
from pyro import distributions as dist

from hmcvi.pyro import AutoHMC
from hmcvi.pyro.quantiles import weighted_quantiles


def test_draws_without_weight_do_not_count() -> None:
    value, weight = torch.randn(9, 2, 3), torch.ones(9)
    more = torch.cat([value, 100 * torch.ones(4, 2, 3)])
    levels = [0.1, 0.5, 0.9]
    expected = weighted_quantiles(value, weight, levels)
    torch.testing.assert_close(
        weighted_quantiles(more, torch.cat([weight, torch.zeros(4)]), levels), expected
    )
    torch.testing.assert_close(expected[1], value.median(0).values)


def test_quantiles_of_exponential_weights_on_uniform_draws() -> None:
    draws = torch.linspace(0, 20, 20_001, dtype=torch.float64)
    quantiles = weighted_quantiles(draws, (-draws).exp(), [0.1, 0.5, 0.9])
    exact = torch.distributions.Exponential(torch.ones(())).icdf(torch.tensor([0.1, 0.5, 0.9]))
    torch.testing.assert_close(quantiles, exact.double(), rtol=1e-3, atol=1e-3)


def test_a_median_takes_no_more_chains_than_it_needs() -> None:
    runs = []

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(z.sum(), 0.5), obs=torch.tensor(1.0))
        runs.append(model)

    pyro.clear_param_store()
    guide = AutoHMC(model)
    guide()
    runs.clear()
    guide.median()
    assert len(runs) < 15  # each for 16384 chains, which are one trajectory of eight steps
