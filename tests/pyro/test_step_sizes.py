"""Steps of refined guides: as long as the model bears, and what becomes of chains for which they are not."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor

from hmcvi import Phase
from hmcvi.kernels import hamiltonian_chain
from hmcvi.pyro import AutoHMC, density_from_pyro
from hmcvi.pyro.transport import pulled_back, transport
from tests.support.problems import F64
from tests.support.pyro_models import logistic_data, sparse_logistic


@torch.no_grad()
def report_of(guide: AutoHMC, count: int, *args: Any) -> Mapping[str, Tensor]:
    """What the chain says of trajectories from the base."""
    density = density_from_pyro(guide.model, *args)
    target = pulled_back(density.log_prob, transport(guide.base.get_posterior()))
    return guide.chain(Phase(torch.randn(count, density.layout.dim, dtype=F64)), target).info


@pytest.mark.parametrize("noise", [1.0, 1e-2, 1e-3])
def test_the_first_step_size_suits_the_model(noise: float) -> None:
    """Far too long for a posterior narrower than the base, it is halved; otherwise it is as given."""

    def model() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(3, dtype=F64), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(z, noise).to_event(1), obs=torch.zeros(3, dtype=F64))

    centre = init_to_value(values={"z": torch.zeros(3, dtype=F64)})
    base = functools.partial(AutoDiagonalNormal, init_loc_fn=centre, init_scale=0.1)
    guide = AutoHMC(model, num_hmc=1, num_leapfrog=4, base=base, chain="hamiltonian", initial_step_size=0.2)
    guide()
    step_size = float(guide.chain.get_parameter("steps.1.step_size.log_step").detach().exp())
    if noise == 1:
        assert step_size == pytest.approx(0.2)
    else:
        stable = 2 * noise / 0.1  # in units of the base
        assert 0.05 * stable < step_size < stable
    assert report_of(guide, 1000)["diverged"].double().mean() < 0.5


def test_chains_that_diverge_leave_a_bound() -> None:
    """The funnel of a horseshoe, with steps too long for it."""
    data = logistic_data(30, 2)
    chain = hamiltonian_chain(5, 0, num_hmc=2, num_leapfrog=4, partial=True, initial_step_size=30.0).double()
    guide = AutoHMC(sparse_logistic, chain=chain)
    guide(*data)
    assert report_of(guide, 100, *data)["diverged"].any()
    elbo = Trace_ELBO(num_particles=100, vectorize_particles=True)
    assert math.isfinite(elbo.loss_and_grads(sparse_logistic, guide, *data))
    assert all(p.grad is None or p.grad.isfinite().all() for p in guide.parameters())


def test_a_single_chain_takes_its_trials_at_once() -> None:
    """The step size is that of many chains, at the price of as many runs of the model."""
    sizes, runs = [], []
    for num_particles in (1, 64):
        pyro.clear_param_store()
        count = 0

        def model() -> None:
            nonlocal count
            count += 1
            z = pyro.sample("z", dist.Normal(torch.zeros(3, dtype=F64), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(z.exp(), 0.3).to_event(1), obs=torch.ones(3, dtype=F64))

        pyro.set_rng_seed(0)
        guide = AutoHMC(model, num_particles=num_particles)
        guide()
        sizes.append([value for name, value in guide.chain.named_parameters() if name.endswith("log_step")])
        runs.append(count)
    torch.testing.assert_close(*sizes)
    assert abs(runs[0] - runs[1]) < 10
