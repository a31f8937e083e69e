"""A compiled trajectory is the eager one: weights, gradients, and what it does when a chain fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from hmcvi import Chain, Density, Phase, iwae
from hmcvi.flows import Leapfrog, compile_trajectories
from hmcvi.kernels import IdentityMetric, hamiltonian_chain
from hmcvi.models import VAE
from tests.problems import F64, LinearGaussian, perturb

MODEL = LinearGaussian()

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the compiler warns about itself


def gaussian(chain: Chain) -> VAE:
    return MODEL.vae(chain)


def bernoulli(chain: Chain) -> VAE:
    torch.manual_seed(0)
    return VAE(4, 2, chain, hidden=(8,)).double()


@pytest.mark.parametrize(
    ("make_vae", "reverse"), [(gaussian, "gaussian"), (bernoulli, "mixture"), (bernoulli, "flow")]
)
def test_weights_and_gradients_are_the_eager_ones(make_vae: Callable[[Chain], VAE], reverse: str) -> None:
    options = {"partial": True, "mass": "nn", "accept": "nn", "hidden": (8,), "initial_step_size": 0.2}
    options["reverse"] = reverse
    chain = perturb(hamiltonian_chain(2, 4, num_hmc=2, num_leapfrog=3, **options))
    vae, x = make_vae(chain), MODEL.data(5).sigmoid()

    def bound_and_gradients() -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        bound = iwae(vae.weights(x, 3))
        return bound, *torch.autograd.grad(bound.sum(), list(vae.parameters()), materialize_grads=True)

    eager = bound_and_gradients()
    compile_trajectories(chain)
    for found, wanted in zip(bound_and_gradients(), eager, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


def test_other_batches_need_no_new_program() -> None:
    chain = hamiltonian_chain(2, 4, num_hmc=2, num_leapfrog=2, partial=True, hidden=(8,))
    vae = bernoulli(compile_trajectories(chain))
    programs = []
    for size in (5, 3, 8):
        vae.bound(MODEL.data(size).sigmoid()).sum().backward()
        programs.append(counters["stats"]["unique_graphs"])
    assert programs == programs[:1] * 3


@pytest.mark.parametrize(("wall", "turns"), [(-torch.inf, False), (torch.nan, True)])
def test_a_wall_in_the_way(wall: float, turns: bool) -> None:
    """On 1 < z < 2 there is no density, or no number: jumping over the first is a map like any other."""

    def log_prob(z: Tensor) -> Tensor:
        inside = (z[..., 0] > 1) & (z[..., 0] < 2)
        if wall == -torch.inf:
            return (-0.5 * z.square().sum(-1)).where(~inside, -torch.inf)
        return -0.5 * (z * torch.where(inside, torch.nan, 1.0)[..., None]).square().sum(-1)

    step = Leapfrog(IdentityMetric(), lambda context: torch.tensor(0.5, dtype=F64), 3)
    start = Phase(
        torch.tensor([[0.5], [-3.0]], dtype=F64, requires_grad=True),
        torch.tensor([[3.0], [0.1]], dtype=F64),
    )
    eager = step(start, Density(log_prob))
    compiled = compile_trajectories(step)(start, Density(log_prob))
    assert eager.info["diverged"].tolist() == compiled.info["diverged"].tolist() == [turns, False]
    torch.testing.assert_close(compiled.state, eager.state)


@pytest.mark.filterwarnings("default")
def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*arguments: object) -> None:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", lambda integrator, **options: no_compiler)
    step = Leapfrog(IdentityMetric(), lambda context: torch.tensor(0.5, dtype=F64), 3)
    start = Phase(torch.randn(4, 2, dtype=F64), torch.randn(4, 2, dtype=F64))
    normal = Density(lambda z: -0.5 * z.square().sum(-1))
    wanted = step(start, normal).state.position
    compile_trajectories(step)
    with pytest.warns(RuntimeWarning, match=r"not compiled: no C\+\+ compiler"):
        torch.testing.assert_close(step(start, normal).state.position, wanted)
    torch.testing.assert_close(step(start, normal).state.position, wanted)  # without another warning
