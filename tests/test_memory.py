"""Chains that forget: the same bound and the same gradient as those that keep everything."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hmcvi import Bound, Chain, Density, Phase, Step
from hmcvi.flows import Leapfrog, flow_chain, leapfrog, set_memory, three_stage, two_stage
from hmcvi.kernels import (
    DiagonalMetric,
    annealed_chain,
    flow_hmc_chain,
    hamiltonian_chain,
    hvae_chain,
    hvi_chain,
    langevin_chain,
    stochastic_flow_chain,
)
from hmcvi.models import VAE
from tests.support.problems import F64, perturb

DIM, DATA = 3, 5
CHAINS: dict[str, Callable[[], Chain]] = {
    **{
        f"hmc {mass} {accept} {partial} {step_size}": functools.partial(
            hamiltonian_chain, DIM, DATA, 3, 4, partial, mass, accept, step_size, (8,), 0.3
        )
        for mass, accept, partial, step_size in [
            ("identity", None, False, "global"),
            ("global", "simple", True, "dimension"),
            ("nn", "nn", True, "nn"),
            ("low-rank", "nn", False, "global"),
            ("full", None, 0.5, "nn"),
        ]
    },
    **{
        f"hmc reversed by a {reverse}, accept {accept}": functools.partial(
            hamiltonian_chain, DIM, DATA, 3, 2, True, "nn", accept, "global", (8,), 0.3, reverse
        )
        for reverse, accept in [("mixture", None), ("flow", None), ("flow", "nn")]
    },
    "hvi": lambda: hvi_chain(DIM, DATA, 2, 3, (8,), 0.3),
    "hvae": lambda: hvae_chain(DIM, 3, initial_step_size=0.3),
    "annealed": lambda: annealed_chain(DIM, DATA, 3, 2, mass="nn", initial_step_size=0.3),
    "annealed-simple": lambda: annealed_chain(DIM, DATA, 3, 2, accept="simple", initial_step_size=0.3),
    "langevin": lambda: langevin_chain(DIM, DATA, 3, "both", ["force"], "nn", "nn", (8,), 0.05),
    "stochastic flow": lambda: stochastic_flow_chain(DIM, DATA, 2, 2, hidden=(8,)),
    "flow": lambda: flow_chain(DIM, DATA, 2, hidden=(8,)),
    "flow-hmc": lambda: flow_hmc_chain(DIM, DATA, 1, 2, 3, hidden=(8,), accept="nn", initial_step_size=0.3),
}


def model(make: Callable[[], Step]) -> VAE:
    torch.manual_seed(0)
    vae = VAE(DATA, DIM, make(), hidden=(6,)).double()
    perturb(vae)
    return vae


def bound_and_gradients(vae: VAE, x: Tensor, num_samples: int) -> tuple[Tensor, dict[str, Tensor | None]]:
    torch.manual_seed(1)
    bound = Bound(alpha=0.0 if num_samples > 1 else 1.0)(vae.weights(x, num_samples)).sum()
    names, parameters = zip(*vae.named_parameters(), strict=True)
    found = torch.autograd.grad(bound, parameters, allow_unused=True)
    return bound.detach(), dict(zip(names, found, strict=True))


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
@pytest.mark.parametrize("name", CHAINS)
def test_gradients_are_those_of_the_stored_graph(name: str, memory: str, num_samples: int) -> None:
    vae, x = model(CHAINS[name]), torch.rand(4, DATA, dtype=F64).round()
    bound, stored = bound_and_gradients(vae, x, num_samples)
    set_memory(vae.chain, memory)
    again, recomputed = bound_and_gradients(vae, x, num_samples)
    torch.testing.assert_close(again, bound, rtol=1e-12, atol=0)
    for parameter, expected in stored.items():
        found = recomputed[parameter]
        if expected is None:
            assert found is None or not found.any(), parameter
        else:
            assert found is not None, parameter
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


class Well(nn.Module):
    """log γ = −a Σ z⁴ / 4 + b · z, where a is computed from a parameter and NaN beyond `wall`."""

    def __init__(self, wall: float = torch.inf) -> None:
        super().__init__()
        self.log_a = nn.Parameter(torch.tensor(-0.3, dtype=F64))
        self.wall, self.num_forces = wall, 0

    def density(self, b: Tensor) -> Density:
        a = self.log_a.exp()

        def log_prob(z: Tensor, b: Tensor) -> Tensor:
            self.num_forces += 1
            value = -a * z.pow(4).sum(-1) / 4 + (b * z).sum(-1)
            return value.where(z.abs().amax(-1) < self.wall, torch.nan)

        return Density(log_prob, b)


def trajectory_gradients(well: Well, step: Step, b: Tensor, start: Phase, memory: str) -> list[Tensor]:
    end, *_, info = Chain([step], memory)(start, well.density(b))
    assert end.momentum is not None and end.log_prob is not None and end.grad is not None
    total = (end.position.sin() + end.momentum.cos() + end.grad.tanh()).sum() + end.log_prob.square().sum()
    return [
        *torch.autograd.grad(total, [well.log_a, b, start.position, start.momentum, *step.parameters()]),
        info["diverged"],
    ]


class Learned(nn.Module):
    """ε, or the metric, from one parameter; the context is not asked."""

    def __init__(self, value: float, metric: bool = False) -> None:
        super().__init__()
        self.value, self.metric = nn.Parameter(torch.tensor(value, dtype=F64)), metric

    def forward(self, context: object) -> object:
        return DiagonalMetric(self.value.expand(2)) if self.metric else self.value.exp()


@pytest.mark.parametrize("wall", [torch.inf, 1.5])
@pytest.mark.parametrize("integrator", [leapfrog, two_stage, three_stage], ids=["one", "two", "three"])
@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_trajectories_alone(memory: str, integrator: object, wall: float) -> None:
    """In every input of a trajectory: start, ε, metric, what the density is given and what it closes over.

    Behind the wall some chains fail; they turn back, the others are as they were.
    """
    torch.manual_seed(0)
    well, b = Well(wall), torch.randn(6, 2, dtype=F64, requires_grad=True)
    step = Leapfrog(Learned(0.2, metric=True), Learned(-1.5), 5, integrator=integrator)
    start = Phase(*(torch.randn(6, 2, dtype=F64, requires_grad=True) for _ in range(2)))
    stored = trajectory_gradients(well, step, b, start, "store")
    assert bool(stored[-1].any()) == (wall < torch.inf)
    again = trajectory_gradients(well, step, b, start, memory)
    torch.testing.assert_close(again, stored, rtol=1e-8, atol=1e-12)


def test_a_trajectory_followed_back_costs_its_forces_twice() -> None:
    well, b = Well(), torch.ones(2, dtype=F64, requires_grad=True)
    chain = Chain([Leapfrog(Learned(0.0, metric=True), Learned(-1.5), 7)], memory="reversible")
    start = Phase(torch.zeros(4, 2, dtype=F64, requires_grad=True), torch.ones(4, 2, dtype=F64))
    end = chain(start.evaluate(density := well.density(b)), density).state.position
    assert well.num_forces == 1 + 7 + 1  # the start's, the trajectory's, and a look at what γ depends on
    torch.autograd.grad(end.sum(), well.log_a)
    assert well.num_forces == 9 + 7


def graph_size(value: Tensor) -> int:
    seen, todo = set(), [value.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [before for before, _ in node.next_functions]
    return len(seen)


def test_what_is_kept_does_not_grow_with_the_trajectory() -> None:
    def size(num_leapfrog: int, memory: str) -> int:
        vae = model(lambda: hamiltonian_chain(DIM, DATA, 2, num_leapfrog, hidden=(8,)))
        set_memory(vae.chain, memory)
        return graph_size(vae.bound(torch.ones(2, DATA, dtype=F64)).sum())

    assert size(2, "store") < size(20, "store")
    for memory in ("checkpoint", "reversible"):
        assert size(2, memory) == size(20, memory) < size(2, "store")


@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_nothing_is_left_when_the_bound_has_gone(memory: str) -> None:
    well, b = Well(), torch.ones(2, dtype=F64, requires_grad=True)
    step = Chain([Leapfrog(Learned(0.0, metric=True), Learned(-1.5), 2)], memory)
    start = Phase(b.new_zeros(4, 2) + b, torch.ones(4, 2, dtype=F64))
    gone = weakref.ref(start.position)
    step(start, well.density(b)).state.position.sum().backward()
    del start
    assert gone() is None


def test_passes_without_gradients_are_as_they_were() -> None:
    vae = model(CHAINS["hmc nn nn True nn"])
    x = torch.ones(2, DATA, dtype=F64)
    with torch.no_grad():
        torch.manual_seed(0)
        expected = vae.bound(x)
        set_memory(vae.chain, "reversible")
        torch.manual_seed(0)
        assert torch.equal(vae.bound(x), expected)


def test_misuse_says_what_to_do() -> None:
    vae = model(CHAINS["hvi"])
    with pytest.raises(ValueError, match="memory must be one of store, checkpoint, reversible, got 'none'"):
        set_memory(vae.chain, "none")
    with pytest.raises(ValueError, match="only a Splitting can be followed back"):
        set_memory(Leapfrog(Learned(0.0, True), Learned(0.0), 1, integrator=lambda *_: _[1]), "reversible")
    with pytest.raises(ValueError, match=r"a chain is needed, got a single Leapfrog: use Chain\(\[step\]\)"):
        set_memory(Leapfrog(Learned(0.0, True), Learned(0.0), 1), "checkpoint")
    set_memory(vae.chain, "checkpoint")
    bound = vae.bound(torch.ones(2, DATA, dtype=F64)).sum()
    with pytest.raises(RuntimeError, match="first derivatives only: set the chain's memory to 'store'"):
        torch.autograd.grad(bound, vae.encoder.net[0].bias, create_graph=True)
