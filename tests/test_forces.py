"""The price of a chain in forces: T·L + 1 for Hamiltonian methods, none for a flow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hmcvi import Chain, Density, Phase
from hmcvi.flows import flow_chain
from hmcvi.kernels import (
    annealed_chain,
    flow_hmc_chain,
    hamiltonian_chain,
    hvae_chain,
    hvi_chain,
    langevin_chain,
    stochastic_flow_chain,
)
from tests.support.problems import F64, LinearGaussian

MODEL = LinearGaussian()
DIMS = {"dim": 2, "context_dim": 4}

METHODS: dict[str, tuple[Callable[[], Chain], int]] = {
    **{
        f"hamiltonian {accept} {partial} {num_hmc}×{num_leapfrog}": (
            lambda a=accept, p=partial, t=num_hmc, n=num_leapfrog: hamiltonian_chain(
                **DIMS, num_hmc=t, num_leapfrog=n, accept=a, partial=p, hidden=(8,)
            ),
            num_hmc * num_leapfrog + 1,
        )
        for accept in (None, "simple", "nn")
        for partial in (False, True)
        for num_hmc, num_leapfrog in ((1, 1), (3, 4))
    },
    "hvi": (lambda: hvi_chain(**DIMS, num_hmc=2, num_leapfrog=3), 7),
    "hvae": (lambda: hvae_chain(2, num_leapfrog=5), 6),
    "hvae untempered": (lambda: hvae_chain(2, num_leapfrog=5, tempering=False), 6),
    "uha": (lambda: annealed_chain(**DIMS, num_steps=3, num_leapfrog=2), 7),
    "dais simple": (
        lambda: annealed_chain(**DIMS, num_steps=3, num_leapfrog=2, partial=False, accept="simple"),
        7,
    ),
    "ula": (lambda: langevin_chain(**DIMS, num_steps=5), 6),
    "cmcd": (lambda: langevin_chain(**DIMS, num_steps=5, control="both", hidden=(8,)), 6),
    "stochastic flow": (lambda: stochastic_flow_chain(**DIMS, num_flows=2, num_steps=3), 8),
    "flow and hmc": (lambda: flow_hmc_chain(**DIMS, num_flows=2, num_hmc=2, num_leapfrog=3), 7),
}
FLOWS: dict[str, Callable[[], Chain]] = {
    "none": Chain,
    "planar": lambda: flow_chain(**DIMS, num_flows=3, flow="planar"),
    "iaf": lambda: flow_chain(**DIMS, num_flows=3),
}


def count(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, Tensor]:
    """Calls of the decoder, calls for a force of the posterior, and the weights."""
    vae = MODEL.vae(chain)
    values: list[None] = []
    forces: list[None] = []
    vae.decoder.register_forward_hook(lambda *_: values.append(None))
    value_and_grad = Density.value_and_grad

    def counted(density: Density, position: Tensor) -> tuple[Tensor, Tensor]:
        if density.base is not None:
            forces.append(None)
        return value_and_grad(density, position)

    monkeypatch.setattr(Density, "value_and_grad", counted)
    log_weight = vae.log_weights(MODEL.data(3), 2)
    return len(values), len(forces), log_weight


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("training", [True, False])
def test_every_force_is_computed_once(method: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    make_chain, expected = METHODS[method]
    torch.manual_seed(0)
    with torch.set_grad_enabled(training):
        values, forces, log_weight = count(make_chain().double(), monkeypatch)
    assert log_weight.isfinite().all()
    assert (values, forces) == (expected, expected)


@pytest.mark.parametrize("make_chain", FLOWS.values(), ids=FLOWS)
def test_a_flow_asks_for_no_force(make_chain: Callable[[], Chain], monkeypatch: pytest.MonkeyPatch) -> None:
    values, forces, _ = count(make_chain().double(), monkeypatch)
    assert (values, forces) == (1, 0)


def test_candidates_cost_densities_and_no_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start alone, the other candidates in one call, then the force of the chosen one."""
    chain = annealed_chain(**DIMS, num_steps=3, coordinates="encoder", num_candidates=8).double()
    values, forces, _ = count(chain, monkeypatch)
    assert (values, forces) == (2 + 4, 4)


def test_networks_of_the_data_are_asked_once() -> None:
    """Mass, step size and the data half of reverse models are computed once for the whole chain."""
    chain = hamiltonian_chain(
        **DIMS, num_hmc=4, num_leapfrog=3, mass="nn", step_size="nn", accept="nn", partial=True, hidden=(8,)
    ).double()
    calls: dict[str, int] = {}
    for name, part in chain.named_modules():
        if name.endswith(("mass.net", "step_size.net", "from_context")):
            part.register_forward_hook(lambda *_, name=name: calls.update({name: calls.get(name, 0) + 1}))
    chain(Phase(torch.zeros(5, 3, 2, dtype=F64)), MODEL.vae().posterior(MODEL.data(3)), MODEL.data(3))
    assert len(calls) == 5 and set(calls.values()) == {1}, calls
