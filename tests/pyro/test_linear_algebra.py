"""Models whose linear algebra fails at some values: those chains diverge, the run goes on."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import MCMC, SVI, Trace_ELBO
from torch import Tensor

from hmcvi.kernels import HMC
from hmcvi.pyro import AutoHMC, KernelAdapter, density_from_pyro, vectorized_mcmc

INPUTS = torch.linspace(0, 1, 12)
TARGETS = torch.sin(6 * INPUTS)


def gaussian_process(inputs: Tensor, targets: Tensor) -> None:
    """Smooth functions in single precision: with little noise their covariance is singular."""
    length = pyro.sample("length", dist.LogNormal(-0.5, 0.5))
    noise = pyro.sample("noise", dist.LogNormal(-4.0, 3.0))
    distance = inputs[:, None] - inputs
    covariance = torch.exp(-0.5 * (distance / length) ** 2) + noise**2 * torch.eye(len(inputs))
    root = torch.linalg.cholesky(covariance)
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(inputs)), scale_tril=root), obs=targets)


def test_the_model_does_fail() -> None:
    values = {"length": torch.tensor(1.0), "noise": torch.tensor(1e-9)}
    model = poutine.condition(gaussian_process, values)
    with pytest.raises(torch.linalg.LinAlgError):
        poutine.trace(model).get_trace(INPUTS, TARGETS)


def test_bad_matrices_are_masked_among_many_chains() -> None:
    density = density_from_pyro(gaussian_process, INPUTS, TARGETS)
    values = {"length": torch.full((4,), 0.3), "noise": torch.tensor([0.1, 1e-9, 0.2, 1e-8])}
    value = density.log_prob(density.unconstrain(values))
    assert value.isfinite().tolist() == [True, False, True, False]
    alone = density.log_prob(density.unconstrain({name: v[2] for name, v in values.items()}))
    torch.testing.assert_close(value[2], alone)


@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")  # short runs
@pytest.mark.parametrize("seed", range(3))
def test_samplers_go_on(seed: int) -> None:
    pyro.set_rng_seed(seed)
    mcmc = MCMC(KernelAdapter(gaussian_process, HMC, num_steps=3), 5, 15, disable_progbar=True)
    mcmc.run(INPUTS, TARGETS)
    settings = {"step_size": 1.0, "num_steps": 3}
    many = vectorized_mcmc(
        gaussian_process,
        HMC,
        INPUTS,
        TARGETS,
        num_chains=8,
        num_samples=5,
        warmup_steps=5,
        seed=seed,
        settings=settings,
    )
    assert all(value.isfinite().all() for value in (*mcmc.get_samples().values(), *many.values()))


@pytest.mark.parametrize("seed", range(3))
def test_guides_go_on(seed: int) -> None:
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    guide = AutoHMC(gaussian_process, num_hmc=1, num_leapfrog=3, hidden=(4,), initial_step_size=3.0)
    svi = SVI(gaussian_process, guide, pyro.optim.ClippedAdam({"lr": 0.01}), Trace_ELBO())
    for _ in range(5):
        svi.step(INPUTS, TARGETS)
    assert all(parameter.isfinite().all() for parameter in guide.parameters())
