"""E[w] = p(x) for every method of the builders, whatever its parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hmcvi import Chain
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
from tests.support.problems import LinearGaussian, perturb
from tests.support.statistics import assert_evidence

NUM_WEIGHTS = 50_000
MODEL = LinearGaussian()
DIMS = {"dim": MODEL.latent_dim, "context_dim": MODEL.data_dim}


def check(make_chain: Callable[[], Chain], strictly_below: bool = True) -> None:
    torch.manual_seed(0)
    chain = perturb(make_chain())
    vae, x = MODEL.vae(chain), MODEL.data(2)
    log_evidence = MODEL.log_evidence(x)
    torch.manual_seed(1)
    with torch.no_grad():
        log_weight = vae.log_weights(x, NUM_WEIGHTS)
    assert_evidence(log_weight, log_evidence)
    if strictly_below:
        assert (log_weight.mean(0) <= log_evidence).all()


@pytest.mark.parametrize("num_hmc", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("accept", [None, "simple", "nn"])
@pytest.mark.parametrize("mass", ["identity", "global", "nn", "low-rank", "full"])
@pytest.mark.parametrize("partial", [False, True])
def test_hamiltonian_chain(partial: bool, mass: str, accept: str | None, num_hmc: int) -> None:
    check(
        lambda: hamiltonian_chain(
            **DIMS,
            num_hmc=num_hmc,
            num_leapfrog=2,
            partial=partial,
            mass=mass,
            accept=accept,
            hidden=(8, 8),
            initial_step_size=0.35,
        )
    )


@pytest.mark.parametrize(
    "options",
    [
        {"step_size": "dimension", "partial": -0.4},
        {"step_size": "nn", "accept": "nn", "partial": 0.3},
        {"num_hmc": 0},
        {"num_leapfrog": 5, "accept": "simple"},
        {"reverse": "mixture", "mass": "full"},
        {"reverse": "mixture", "partial": True, "mass": "nn", "accept": "nn"},
        {"reverse": "flow", "mass": "nn"},
        {"reverse": "flow", "partial": True, "mass": "full", "accept": "simple"},
        {"coordinates": "encoder"},
        {"coordinates": "encoder", "partial": True, "reverse_sees": ["position", "force"], "mass": "nn"},
        {"coordinates": "encoder", "reverse_sees": ["force"], "accept": "nn", "reverse": "mixture"},
        {"partial": True, "reverse_sees": ["position", "force", "standardised"], "step_size": "nn"},
    ],
    ids=str,
)
def test_hamiltonian_chain_with_options(options: dict) -> None:
    settings = {"num_hmc": 2, "num_leapfrog": 2, "hidden": (8,), "initial_step_size": 0.35, **options}
    check(lambda: hamiltonian_chain(**DIMS, **settings))


@pytest.mark.parametrize("reverse", ["gaussian", "mixture", "flow"])
def test_hvi_chain(reverse: str) -> None:
    check(
        lambda: hvi_chain(
            **DIMS, num_hmc=2, num_leapfrog=3, hidden=(8,), initial_step_size=0.3, reverse=reverse
        )
    )


@pytest.mark.parametrize("tempering", [False, True])
def test_hvae_chain(tempering: bool) -> None:
    check(lambda: hvae_chain(2, num_leapfrog=3, tempering=tempering, initial_step_size=0.2))


@pytest.mark.parametrize("accept", [None, "simple"])
@pytest.mark.parametrize("partial", [False, True, 0.7], ids=["DAIS", "UHA", "fixed"])
@pytest.mark.parametrize("mass", ["global", "nn", "full"])
def test_annealed_chain(partial: bool | float, accept: str | None, mass: str) -> None:
    check(
        lambda: annealed_chain(
            **DIMS,
            num_steps=4,
            num_leapfrog=2,
            partial=partial,
            accept=accept,
            mass=mass,
            initial_step_size=0.3,
        )
    )


@pytest.mark.parametrize(
    "options",
    [
        {"coordinates": "encoder"},
        {"coordinates": "encoder", "mass": "nn", "accept": "simple"},
        {"reverse": "gaussian"},
        {"reverse": "mixture", "coordinates": "encoder", "partial": False},
        {"reverse": "gaussian", "reverse_sees": ["position", "force"], "coordinates": "encoder"},
        {"num_candidates": 4, "num_steps": 2, "coordinates": "encoder"},
    ],
    ids=str,
)
def test_annealed_chain_with_options(options: dict) -> None:
    settings = {"num_steps": 4, "num_leapfrog": 1, "hidden": (8,), "initial_step_size": 0.4, **options}
    check(lambda: annealed_chain(**DIMS, **settings))


@pytest.mark.parametrize("context_dim", [0, 4])
@pytest.mark.parametrize("flow", ["planar", "iaf", "coupling"])
def test_flow_chain(flow: str, context_dim: int) -> None:
    check(lambda: flow_chain(2, context_dim, num_flows=3, flow=flow, hidden=(8,)))


@pytest.mark.parametrize("reverse", ["mixture", "flow"])
def test_flow_hmc_chain_with_flexible_reverse_models(reverse: str) -> None:
    settings = {"num_flows": 2, "num_hmc": 2, "num_leapfrog": 2, "hidden": (8,), "initial_step_size": 0.3}
    check(lambda: flow_hmc_chain(**DIMS, **settings, partial=True, reverse=reverse))


@pytest.mark.parametrize("flow", ["planar", "iaf", "coupling"])
def test_flow_hmc_chain(flow: str) -> None:
    check(
        lambda: flow_hmc_chain(
            **DIMS,
            num_flows=2,
            num_hmc=2,
            num_leapfrog=2,
            flow=flow,
            hidden=(8,),
            partial=True,
            accept="nn",
            initial_step_size=0.3,
        )
    )


@pytest.mark.parametrize("step_size", ["global", "dimension", "nn"])
@pytest.mark.parametrize("mass", ["identity", "full"])
@pytest.mark.parametrize("control", [None, "reverse", "both"], ids=["ULA", "MCD", "CMCD"])
def test_langevin_chain(control: str | None, mass: str, step_size: str) -> None:
    settings = {"num_steps": 4, "hidden": (8,), "initial_step_size": 0.1}
    check(lambda: langevin_chain(**DIMS, **settings, control=control, mass=mass, step_size=step_size))


@pytest.mark.parametrize("control", [None, "reverse", "both"], ids=["ULA", "MCD", "CMCD"])
def test_langevin_chain_in_the_coordinates_of_the_encoder(control: str | None) -> None:
    settings = {"num_steps": 4, "hidden": (8,), "initial_step_size": 0.05, "coordinates": "encoder"}
    sees = ["position", "force"]
    check(lambda: langevin_chain(**DIMS, **settings, control=control, control_sees=sees))


@pytest.mark.parametrize("flow", ["planar", "iaf", "coupling"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"coordinates": "encoder"},
        {"move": "hmc", "num_leapfrog": 2},
        {"move": "hmc", "accept": "simple", "mass": "full"},
    ],
    ids=["langevin", "encoder", "hmc", "metropolis"],
)
def test_stochastic_flow_chain(options: dict, flow: str) -> None:
    settings = {"num_flows": 2, "num_steps": 2, "hidden": (8,), "initial_step_size": 0.1}
    check(lambda: stochastic_flow_chain(**DIMS, **settings, **options, flow=flow))
