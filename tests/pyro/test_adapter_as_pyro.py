"""KernelAdapter where Pyro's own kernels set the expectation."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC
from pyro.infer import mcmc as pyro_mcmc
from torch import Tensor
from torch.distributions import ExpTransform

from hmcvi.kernels import HMC
from hmcvi.pyro import KernelAdapter
from tests.support.problems import F64
from tests.support.pyro_models import GAUSSIAN, conjugate_gaussian
from tests.support.statistics import Z

START = {"rate": torch.zeros((), dtype=F64)}
TO_REAL = {"rate": ExpTransform().inv}


def potential(params: dict[str, Tensor]) -> Tensor:
    """−log of Gamma(3, 2) on the log scale."""
    return 2 * params["rate"].exp() - 3 * params["rate"]


def test_transforms_of_a_potential_are_applied() -> None:
    """Samples are rates, with the mean of the gamma distribution."""
    kernel = KernelAdapter(None, HMC, potential_fn=potential, transforms=TO_REAL, num_steps=3)
    mcmc = MCMC(kernel, 600, warmup_steps=100, initial_params=START, disable_progbar=True)
    mcmc.run()
    draws = mcmc.get_samples()["rate"]
    assert (draws > 0).all()
    error = (draws.var() / pyro.ops.stats.effective_sample_size(draws[None])).sqrt()
    assert (draws.mean() - 1.5).abs() <= Z * error
    mcmc = MCMC(
        KernelAdapter(None, HMC, potential_fn=potential, transforms={"speed": ExpTransform()}),
        5,
        initial_params=START,
        disable_progbar=True,
    )
    with pytest.raises(ValueError, match="no parameter 'speed' to transform"):
        mcmc.run()


def test_a_potential_may_have_one_entry() -> None:
    draws = []
    for shape in ((), (1,)):
        pyro.set_rng_seed(0)

        def shaped(params: dict[str, Tensor], shape: tuple[int, ...] = shape) -> Tensor:
            return potential(params).reshape(shape)

        kernel = KernelAdapter(None, HMC, potential_fn=shaped, num_steps=2)
        mcmc = MCMC(kernel, 5, warmup_steps=5, initial_params=START, disable_progbar=True)
        mcmc.run()
        draws.append(mcmc.get_samples()["rate"])
    assert torch.equal(*draws)
    kernel = KernelAdapter(None, HMC, potential_fn=lambda p: potential(p).expand(2))
    with pytest.raises(ValueError, match=r"potential_fn must return one number, got \[2\]"):
        MCMC(kernel, 5, initial_params=START, disable_progbar=True).run()


def no_latents() -> None:
    pyro.sample("x", dist.Normal(0.0, 1.0), obs=torch.ones(()))


def test_models_without_latents_run() -> None:
    reports = []
    for kernel in (pyro_mcmc.HMC(no_latents), KernelAdapter(no_latents, HMC)):
        mcmc = MCMC(kernel, 5, warmup_steps=3, disable_progbar=True)
        mcmc.run()
        reports.append((mcmc.get_samples(), mcmc.diagnostics()))
    assert reports[0] == reports[1]


def test_the_cache_can_be_cleared() -> None:
    """The next step begins with what it is given, even if it is what was returned."""
    kernel = KernelAdapter(conjugate_gaussian, HMC, step_size=1e-6, num_steps=1)
    kernel.setup(0, GAUSSIAN)
    params = kernel.sample(kernel.initial_params)
    params["z"].fill_(5.0)
    kernel.clear_cache()
    torch.testing.assert_close(kernel.sample(params)["z"], torch.tensor(5.0, dtype=F64), atol=1e-3, rtol=0)


def test_one_chain_is_not_warned_about_vectorising() -> None:
    def branches() -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros((), dtype=F64), 1.0))
        pyro.sample("x", dist.Normal(z, 1.0 if z > 0 else 2.0), obs=torch.ones((), dtype=F64))

    mcmc = MCMC(KernelAdapter(branches, HMC, num_steps=2), 5, warmup_steps=5, disable_progbar=True)
    mcmc.run()  # warnings are errors here
