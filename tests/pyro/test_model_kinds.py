"""Models of the kinds that Pyro's users write run by every entry point: guides, MCMC, all chains at once."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro.infer import MCMC, SVI, Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal

from hmcvi.kernels import HMC
from hmcvi.pyro import AutoHMC, KernelAdapter, density_from_pyro, vectorized_mcmc
from tests.support.pyro_kinds import KINDS

LOOPS = {"deep markov"}  # vmap cannot run their recurrent network


@pytest.mark.filterwarnings("ignore:the model does not vectorise")
@pytest.mark.parametrize("num_particles", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_guides_train(kind: str, num_particles: int) -> None:
    model, args, enumerates = KINDS[kind]
    pyro.clear_param_store()
    settings = {"chain": "hamiltonian", "num_hmc": 1, "num_leapfrog": 1}  # whose trials are short
    guide = AutoHMC(model, base=AutoDiagonalNormal, num_particles=num_particles, **settings)
    elbo = TraceEnum_ELBO(max_plate_nesting=2) if enumerates else Trace_ELBO()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
    assert all(math.isfinite(svi.step(*args)) for _ in range(2))
    draws = guide.sample_posterior(3)
    assert all(len(value) == 3 and value.isfinite().all() for value in draws.values())


@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning", "ignore:the model does not vectorise")
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_move_the_same_sites(kind: str) -> None:
    model, args, _ = KINDS[kind]
    mcmc = MCMC(KernelAdapter(model, HMC, num_steps=2), 3, warmup_steps=3, disable_progbar=True)
    mcmc.run(*args)
    one = mcmc.get_samples()
    all_at_once = vectorized_mcmc(model, HMC, *args, num_chains=3, num_samples=3, settings={"num_steps": 2})
    assert one.keys() == all_at_once.keys()
    assert all(one[name].shape[1:] == value.shape[1:] for name, value in all_at_once.items())
    assert all(value.isfinite().all() for value in all_at_once.values())


@pytest.mark.filterwarnings("ignore:the model does not vectorise")
@pytest.mark.parametrize("kind", KINDS)
def test_many_chains_are_evaluated_in_one_run_of_the_model(kind: str) -> None:
    model, args, _ = KINDS[kind]
    density = density_from_pyro(model, *args)
    assert density.vectorized == (kind not in LOOPS)
    positions = density.initial(3)
    one_by_one = torch.stack([density.log_prob(position) for position in positions])
    torch.testing.assert_close(density.log_prob(positions), one_by_one, rtol=1e-4, atol=1e-4)
