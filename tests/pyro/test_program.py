"""Chains of guides as one program: the same training, as long as the model is the same."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor

from hmcvi.internal.recorder import SMALL
from hmcvi.pyro import AutoHMC, program
from tests.support.problems import F64
from tests.support.pyro_models import eight_schools, number


def line(x: Tensor, factor: float = 1.0) -> None:
    slope = pyro.sample("slope", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x * slope.sum(-1) * factor, 0.5), obs=2 * x)


DATA = torch.linspace(-1, 1, 5, dtype=F64)


def trained(num_steps: int = 6, **settings: Any) -> tuple[AutoHMC, list[float]]:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = AutoHMC(eight_schools, **{"num_hmc": 3, "num_particles": 4, **settings})
    svi = SVI(eight_schools, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    return guide, [svi.step() for _ in range(num_steps)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"base": "diagonal"}, marks=pytest.mark.slow),
        pytest.param({"base": "lowrank"}, marks=pytest.mark.slow),
        pytest.param({"chain": "hamiltonian", "num_leapfrog": 2}, marks=pytest.mark.slow),
        pytest.param({"chain": "ldvi"}, marks=pytest.mark.slow),
        pytest.param({"initial_step_size": 4.0}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_program_trains_as_the_chains_themselves(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    guide, losses = trained(**settings)
    assert guide._programs._program is not None and guide.not_recorded is None
    with monkeypatch.context() as patched:
        patched.setattr(program, "MAX_CHANGES", -1)
        plain, expected = trained(**settings)
    assert plain._programs._program is None
    assert losses == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(guide.state_dict(), plain.state_dict())


def test_a_program_of_many_chains_has_the_gradients_of_the_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many that the weights of the ELBO are more numbers than a small constant has."""
    elbo = Trace_ELBO(num_particles=SMALL // 4 + 1, vectorize_particles=True, max_plate_nesting=1)
    guide, _ = trained(2)
    grads = []
    for most in (3, -1):
        monkeypatch.setattr(program, "MAX_CHANGES", most)
        for _ in range(3):  # the second one records
            pyro.set_rng_seed(1)
            guide.zero_grad()
            elbo.loss_and_grads(eight_schools, guide)
        assert (guide._programs._program is not None) or most == -1
        grads.append({name: p.grad.clone() for name, p in guide.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*grads)


def test_chains_that_diverge_are_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same random numbers: the weights are those that the program could not give."""
    guide, _ = trained()
    with torch.no_grad():
        for name, parameter in guide.chain.named_parameters():
            if name.endswith("log_step"):
                parameter.fill_(4.0)  # far beyond stability
    losses = []
    for most in (3, -1):
        monkeypatch.setattr(program, "MAX_CHANGES", most)
        pyro.set_rng_seed(1)
        losses.append(Trace_ELBO().loss_and_grads(eight_schools, guide))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"accept": "simple"}, "acceptance branches on values"),
        ({"base": "iaf"}, "not an affine map"),
        ({"num_particles": 1}, "num_particles=1"),
    ],
    ids=str,
)
def test_what_cannot_be_traced_is_run_as_it_is(settings: dict[str, Any], reason: str) -> None:
    guide, _ = trained(4, **settings)
    assert guide._programs._program is None
    assert reason in (guide.not_recorded or "")


def test_says_that_the_data_keep_changing() -> None:
    guide = AutoHMC(line, num_hmc=1, num_particles=2)
    svi = SVI(line, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    for step in range(program.MAX_CHANGES + 1):
        assert step == 0 or guide.not_recorded is None
        svi.step(DATA, 1 + step / 10)
    assert "change" in (guide.not_recorded or "")


def test_a_changed_model_has_another_program() -> None:
    """Whatever changes: the data, an argument, or something else that it depends on."""
    guide = AutoHMC(line, num_hmc=1, num_particles=2)
    svi = SVI(line, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    for _ in range(3):
        svi.step(DATA)
    first = guide._programs._program
    assert first is not None
    svi.step(DATA.clone())
    assert guide._programs._program is first  # the same numbers
    svi.step(DATA, 1.1)
    assert guide._programs._program is None
    svi.step(DATA, 1.1)
    assert guide._programs._program not in (None, first)


def test_a_model_that_learns_has_none() -> None:
    def model(x: Tensor) -> None:
        noise = pyro.param("noise", number(0.5))
        slope = pyro.sample("slope", dist.Normal(number(0.0), 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x * slope, noise), obs=2 * x)

    guide = AutoHMC(model, num_hmc=1, num_particles=2)
    for rate in (0.01, 0.0):  # its parameters are not constants, even if they do not change
        svi = SVI(model, guide, pyro.optim.Adam({"lr": rate}), Trace_ELBO())
        for _ in range(3):
            svi.step(DATA)
        assert guide._programs._program is None
    assert "change" in (guide.not_recorded or "")


def test_copies_have_none() -> None:
    guide, _ = trained(4)
    for other in (copy.deepcopy(guide), pickle.loads(pickle.dumps(guide))):
        assert guide._programs._program is not None and other._programs._program is None
