"""Models that assign to parts of tensors are run for many chains at once."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pytest
import torch
from pyro import distributions as dist

from hmcvi.pyro import density_from_pyro


def multinomial() -> None:
    rate = pyro.sample("rate", dist.Dirichlet(torch.ones(3)))
    counts = torch.tensor([2.0, 3.0, 0.0])
    pyro.sample("counts", dist.Multinomial(5, rate, validate_args=False), obs=counts)


def ordered() -> None:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 3):
        predictor = slope * torch.arange(3.0)
        pyro.sample(
            "y", dist.OrderedLogistic(predictor, torch.tensor([0.0, 1.0])), obs=torch.tensor([0, 2, 1])
        )


def path() -> None:
    drift = pyro.sample("drift", dist.Normal(0.0, 1.0))
    level = torch.zeros(4)
    for time in range(1, 4):
        level[time] = 0.5 * level[time - 1] + drift
    pyro.sample("y", dist.Normal(level, 1.0).to_event(1), obs=torch.ones(4))


def rectified() -> None:
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    mean = 2.0 * weight
    mean[mean < 0] = 0.0
    pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=torch.ones(3))


def imputed() -> None:
    missing = pyro.sample("missing", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    x = torch.tensor([1.0, torch.nan, 2.0, torch.nan]).clone()
    x[torch.tensor([False, True, False, True])] = missing
    pyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=torch.ones(4))


@pytest.mark.parametrize("model", [multinomial, ordered, path, rectified, imputed])
def test_assignments_vectorise(model: Callable[[], None]) -> None:
    density = density_from_pyro(model)  # a model that does not vectorise would be warned about
    assert density.vectorized
    positions = density.initial(5)
    value, grad = density.value_and_grad(positions)
    one_by_one = [density.value_and_grad(position) for position in positions]
    torch.testing.assert_close(value, torch.stack([each for each, _ in one_by_one]))
    torch.testing.assert_close(grad, torch.stack([each for _, each in one_by_one]))
