"""What KernelAdapter says about a run of Pyro's MCMC."""

from __future__ import annotations

import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC
from torch import Tensor

import hmcvi
from hmcvi.kernels import HMC
from hmcvi.pyro import KernelAdapter
from hmcvi.pyro.chains_of_run import ChainsOfRun
from tests.support.problems import F64
from tests.support.pyro_models import GAUSSIAN, conjugate_gaussian


def two_modes(gap: Tensor) -> None:
    """Half of the probability at ±gap each."""
    z = pyro.sample("z", dist.Normal(torch.zeros((), dtype=F64), 10.0))
    modes = torch.stack([dist.Normal(centre, 1.0).log_prob(z) for centre in (-gap, gap)])
    pyro.factor("modes", modes.logsumexp(0))


def test_a_good_run_has_no_problems() -> None:
    mcmc = MCMC(KernelAdapter(conjugate_gaussian, HMC), 400, warmup_steps=200, disable_progbar=True)
    mcmc.run(GAUSSIAN)  # warnings are errors here
    assert mcmc.diagnostics()["problems"] == {"chain 0": []}


def test_a_chain_that_hardly_moves_is_warned_about_once() -> None:
    kernel = KernelAdapter(conjugate_gaussian, HMC, step_size=1e-4, num_steps=1)
    mcmc = MCMC(kernel, 400, warmup_steps=0, disable_progbar=True)
    with pytest.warns(hmcvi.SamplingWarning, match=r"R-hat is .* for z: warm up and draw longer") as found:
        mcmc.run(GAUSSIAN)
    assert len(found) == 1
    assert "R-hat" in mcmc.diagnostics()["problems"]["chain 0"][0]


def test_short_trials_are_not_warned_about() -> None:
    kernel = KernelAdapter(conjugate_gaussian, HMC, step_size=1e-4, num_steps=1)
    mcmc = MCMC(kernel, 60, warmup_steps=0, disable_progbar=True)
    mcmc.run(GAUSSIAN)
    assert mcmc.diagnostics()["problems"]["chain 0"]


@pytest.mark.filterwarnings("ignore:num_chains")
def test_chains_in_different_modes_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them alone looks well; chains of other data are not compared to them."""
    monkeypatch.setattr(torch.multiprocessing, "cpu_count", lambda: 1)
    kernel = KernelAdapter(two_modes, HMC)
    starts = {"z": torch.tensor([-9.0, 9.0], dtype=F64)}
    mcmc = MCMC(kernel, 400, 50, initial_params=starts, num_chains=2, disable_progbar=True)
    with pytest.warns(hmcvi.SamplingWarning, match=r"R-hat is .* several modes"):
        mcmc.run(torch.tensor(9.0, dtype=F64))
    found = mcmc.diagnostics()["problems"]
    assert not found["chain 0"] and "R-hat" in found["chain 1"][0]
    alone = MCMC(kernel, 400, 50, initial_params={"z": starts["z"][0]}, disable_progbar=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone.run(torch.tensor(9.0, dtype=F64))


def test_long_chains_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmcvi.pyro.chains_of_run.MOST_NUMBERS", 100)
    chains = ChainsOfRun()
    chains.begin(())
    for index in range(1000):
        chains.add(torch.full((1, 2), float(index)), {"diverged": torch.tensor([index == 0])})
    chains.end()
    position, stats = chains._chains[0]
    assert len(position) <= 50 and len(stats["diverged"]) == len(position)
    assert len(position[:, 0].diff().unique()) == 1
