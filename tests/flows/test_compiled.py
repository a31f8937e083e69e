"""A compiled trajectory is the eager one: weights, gradients, and what it does when a chain fails."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from hmcvi import Chain, Density, Phase, iwae
from hmcvi.flows import Leapfrog, compile_trajectories
from hmcvi.kernels import IdentityMetric, hamiltonian_chain
from hmcvi.models import VAE
from tests.support.problems import F64, LinearGaussian, perturb

MODEL = LinearGaussian()

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler warns about itself


COMPILE = torch.compile


def num_programs() -> int:
    """As many as have been compiled so far."""
    return counters["stats"]["unique_graphs"]


def traced(function: Callable[..., Any], dynamic: bool | None, **options: object) -> Callable[..., Any]:
    return COMPILE(function, dynamic=dynamic, backend="aot_eager")


@functools.cache
def twins(likelihood: str, reverse: str, num_leapfrog: int) -> tuple[VAE, VAE]:
    """The same model with an eager and with a compiled chain, whose program is made here."""
    options = {"partial": True, "mass": "nn", "accept": "nn", "hidden": (8,), "initial_step_size": 0.2}
    chain = perturb(hamiltonian_chain(2, 4, 2, num_leapfrog, reverse=reverse, **options))
    torch.manual_seed(0)
    eager = MODEL.vae(chain) if likelihood == "gaussian" else VAE(4, 2, chain, hidden=(8,)).double()
    compiled, before = copy.deepcopy(eager), num_programs()
    compile_trajectories(compiled.chain)
    bound_and_gradients(compiled, 5)
    assert num_programs() == before + 1
    return eager, compiled


def bound_and_gradients(vae: VAE, size: int) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    bound = iwae(vae.weights(MODEL.data(size).sigmoid(), 3))
    return bound, *torch.autograd.grad(bound.sum(), list(vae.parameters()), materialize_grads=True)


def assert_same(eager: VAE, compiled: VAE, size: int) -> None:
    wanted = bound_and_gradients(eager, size)
    for found, expected in zip(bound_and_gradients(compiled, size), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("reverse", ["mixture", "flow"])
def test_weights_and_gradients_are_the_eager_ones(reverse: str) -> None:
    assert_same(*twins("bernoulli", reverse, 1), 5)


@pytest.mark.slow
def test_weights_and_gradients_of_a_traced_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the compiler differentiates it, without the C++ that it makes of it."""
    monkeypatch.setattr(torch, "compile", traced)
    assert_same(*twins("gaussian", "gaussian", 3), 5)


@pytest.mark.slow
def test_other_batches_need_no_new_program() -> None:
    eager, compiled = twins("bernoulli", "mixture", 1)
    before = num_programs()
    for size in (5, 3, 8):
        assert_same(eager, compiled, size)
    assert num_programs() == before


@pytest.mark.slow
def test_a_wall_in_the_way() -> None:
    """On 1 < z < 2 there is no density, on −2 < z < −1 no number: only the second cannot be crossed."""

    def log_prob(z: Tensor) -> Tensor:
        no_density, no_number = ((side > 1) & (side < 2) for side in (z[..., 0], -z[..., 0]))
        broken = z * torch.where(no_number, torch.nan, 1.0)[..., None]
        return (-0.5 * broken.square().sum(-1)).where(~no_density, -torch.inf)

    chain = Chain([Leapfrog(IdentityMetric(), lambda context: torch.tensor(0.5, dtype=F64), 3)])
    start = Phase(
        torch.tensor([[0.5], [-0.5], [3.0]], dtype=F64, requires_grad=True),
        torch.tensor([[3.0], [-3.0], [-0.1]], dtype=F64),
    )
    eager, before = chain(start, Density(log_prob)), num_programs()
    compiled = compile_trajectories(chain)(start, Density(log_prob))
    assert num_programs() == before + 1
    assert eager.info["diverged"].tolist() == compiled.info["diverged"].tolist() == [[False, True, False]]
    torch.testing.assert_close(compiled.state, eager.state)


@pytest.mark.filterwarnings("default")
def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*arguments: object) -> None:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", lambda integrator, **options: no_compiler)
    chain = Chain([Leapfrog(IdentityMetric(), lambda context: torch.tensor(0.5, dtype=F64), 3)])
    start = Phase(torch.randn(4, 2, dtype=F64), torch.randn(4, 2, dtype=F64))
    normal = Density(lambda z: -0.5 * z.square().sum(-1))
    wanted = chain(start, normal).state.position
    compile_trajectories(chain)
    with pytest.warns(RuntimeWarning, match=r"not compiled: no C\+\+ compiler"):
        torch.testing.assert_close(chain(start, normal).state.position, wanted)
    torch.testing.assert_close(chain(start, normal).state.position, wanted)  # without another warning
