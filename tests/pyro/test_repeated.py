"""Densities that are evaluated many times soon do without the model's Python."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import MCMC
from torch import Tensor

from hmcvi.density import Density
from hmcvi.kernels import HMC
from hmcvi.pyro import AutoHMC, KernelAdapter
from hmcvi.pyro.repeated import FIRST_CALLS, Repeated


class Counted:
    """A regression that counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        slope = pyro.sample("slope", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 5):
            pyro.sample("y", dist.Normal(slope.sum(), 0.5), obs=torch.arange(5.0) / 5)


def test_the_fit_and_the_trials_of_a_guide_run_the_model_a_few_times() -> None:
    pyro.clear_param_store()
    model = Counted()
    AutoHMC(model)()
    assert model.runs < 60  # 1000 and more steps are fitted and tried


@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")
def test_so_does_hmc_in_mcmc() -> None:
    model = Counted()
    kernel = KernelAdapter(model, HMC, num_steps=5)
    MCMC(kernel, num_samples=40, warmup_steps=20, disable_progbar=True).run()
    assert model.runs < 60  # of 300 gradients


def test_values_and_gradients_are_those_of_the_function() -> None:
    calls = []

    def log_prob(z: Tensor) -> Tensor:
        calls.append(z)
        return -z.square().sum(-1) + z.prod(-1).sin()

    plain, repeated = Density(log_prob), Density(Repeated(log_prob))
    for scale in torch.linspace(0.1, 2.0, FIRST_CALLS + 3):
        z = scale * torch.randn(4, 3)
        for ours, theirs in zip(repeated.value_and_grad(z), plain.value_and_grad(z), strict=True):
            torch.testing.assert_close(ours, theirs)
    before = len(calls)
    repeated.value_and_grad(torch.randn(4, 3))
    assert len(calls) == before
    repeated.value_and_grad(torch.randn(2, 3))  # another shape
    assert len(calls) == before + 1


def test_failed_linear_algebra_is_left_to_the_function() -> None:
    def log_prob(z: Tensor) -> Tensor:
        return torch.linalg.cholesky(torch.eye(2) * z[..., None]).diagonal(dim1=-2, dim2=-1).log().sum(-1)

    density = Density(Repeated(log_prob))
    good = torch.tensor([[1.0], [4.0]])
    for _ in range(FIRST_CALLS + 1):
        density.value_and_grad(good)
    value, grad = density.finite_value_and_grad(torch.tensor([[1.0], [-4.0]]))
    assert value.tolist() == [0.0, -torch.inf] and grad.tolist() == [[1.0], [0.0]]


def test_what_branches_on_values_is_not_recorded() -> None:
    def log_prob(z: Tensor) -> Tensor:
        return -z.square().sum(-1) if z.sum() > 0 else -z.abs().sum(-1)

    density = Density(Repeated(log_prob))
    for _ in range(FIRST_CALLS + 1):
        density.value_and_grad(torch.ones(2, 3))
    assert density.value_and_grad(-torch.ones(2, 3))[1].tolist() == [[1.0] * 3] * 2
