"""Misuse of KernelAdapter that a user of Pyro's kernels may come with."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC
from torch import Tensor

from hmcvi.kernels import HMC
from hmcvi.pyro import KernelAdapter, vectorized_mcmc
from tests.support.problems import F64
from tests.support.pyro_models import GAUSSIAN, conjugate_gaussian


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ({"stepsize": 0.1}, "no setting 'stepsize': did you mean 'step_size'"),
        ({"full_mass": True}, r"no setting 'full_mass': give warmup=Warmup\(mass='dense'\)"),
        ({"max_plate_nesting": 1}, "no setting 'max_plate_nesting': it is found by running the model"),
        ({"colour": 1}, "no setting 'colour': it has step_size, num_steps"),
    ],
)
def test_settings_that_the_kernel_does_not_have(setting: dict[str, Any], hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        KernelAdapter(conjugate_gaussian, HMC, **setting).setup(0, GAUSSIAN)
    with pytest.raises(TypeError, match=hint):
        vectorized_mcmc(conjugate_gaussian, HMC, GAUSSIAN, settings=setting)


def test_functions_may_take_any_setting() -> None:
    def build(density: Any, **settings: Any) -> HMC:
        return HMC(density, 0.1, settings["how_many"])

    KernelAdapter(conjugate_gaussian, build, how_many=3).setup(0, GAUSSIAN)


def test_the_number_of_warmup_steps_in_the_wrong_place() -> None:
    with pytest.raises(TypeError, match=r"got 100: the number of warm-up steps is that of MCMC"):
        KernelAdapter(conjugate_gaussian, HMC, warmup=100)  # type: ignore[arg-type]


def test_initial_params_without_a_finite_density() -> None:
    start = {"z": torch.tensor(torch.nan, dtype=F64)}
    mcmc = MCMC(KernelAdapter(conjugate_gaussian, HMC), 5, initial_params=start, disable_progbar=True)
    with pytest.raises(ValueError, match="log p is not finite at initial_params"):
        mcmc.run(GAUSSIAN)


def test_inputs_that_are_not_numbers_are_named_by_the_site_they_spoil() -> None:
    def regression(inputs: Tensor, outputs: Tensor) -> None:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(inputs)):
            pyro.sample("outputs", dist.Normal(slope * inputs, 1.0), obs=outputs)

    inputs = torch.tensor([0.1, torch.nan])
    mcmc = MCMC(KernelAdapter(regression, HMC), 5, disable_progbar=True)
    with pytest.raises(ValueError, match=r"cannot find valid initial params: .* not finite at 'outputs'"):
        mcmc.run(inputs, torch.ones(2))
