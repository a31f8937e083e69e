"""What the builders refuse, and what they share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hmcvi import Chain, Density, Phase
from hmcvi.flows import Bijection, flow_chain
from hmcvi.kernels import (
    HMC,
    Anneal,
    NetworkStepSize,
    Schedule,
    StepSize,
    annealed_chain,
    flow_hmc_chain,
    hamiltonian_chain,
    hvae_chain,
    hvi_chain,
    stochastic_flow_chain,
)
from hmcvi.kernels.variational.cooling import QuadraticCooling
from tests.support.problems import F64, Mixture

SIZES: dict[str, Any] = {"dim": 2, "context_dim": 3, "num_hmc": 2, "num_leapfrog": 2}
ANNEALED: dict[str, Any] = {"dim": 2, "context_dim": 3, "num_steps": 2, "num_leapfrog": 2}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_leapfrog", 0),
        ("num_hmc", -1),
        ("dim", 0),
        ("context_dim", -1),
        ("partial", 1.0),
        ("partial", -1.5),
        ("mass", "dense"),
        ("accept", "always"),
        ("step_size", "adaptive"),
        ("reverse", "spline"),
        ("reverse_sees", "force"),
        ("reverse_sees", []),
        ("reverse_sees", ["force", "force"]),
        ("coordinates", "decoder"),
        ("initial_step_size", 0.0),
        ("initial_step_size", -0.1),
    ],
)
def test_hamiltonian_chain_names_what_it_refuses(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {value!r}")):
        hamiltonian_chain(**{**SIZES, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_leapfrog", 0),
        ("num_steps", -1),
        ("dim", 0),
        ("partial", 1.0),
        ("mass", "dense"),
        ("accept", "nn"),
        ("reverse", "spline"),
        ("coordinates", "decoder"),
    ],
)
def test_annealed_chain_names_what_it_refuses(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {value!r}")):
        annealed_chain(**{**ANNEALED, name: value})


def test_other_builders_name_what_they_refuse() -> None:
    with pytest.raises(ValueError, match="got 0"):
        hvi_chain(2, 3, 2, num_leapfrog=0)
    with pytest.raises(ValueError, match="got 0"):
        hvae_chain(2, num_leapfrog=0)
    with pytest.raises(ValueError, match=r"got 1\.5"):
        hvae_chain(2, num_leapfrog=2, initial_beta=1.5)
    with pytest.raises(ValueError, match="got 'spline'"):
        flow_chain(2, 3, 2, flow="spline")
    with pytest.raises(ValueError, match="got -1"):
        flow_chain(2, 3, num_flows=-1)
    with pytest.raises(ValueError, match="got 1"):
        flow_chain(1, 3, 2, flow="coupling")
    with pytest.raises(ValueError, match="got 'dense'"):
        flow_hmc_chain(2, 3, 1, 1, 1, mass="dense")


@pytest.mark.parametrize("network", ["mass", "step_size"])
def test_a_network_of_the_data_needs_data(network: str) -> None:
    with pytest.raises(ValueError, match="got 0"):
        hamiltonian_chain(**{**SIZES, "context_dim": 0, network: "nn"})
    chain = hamiltonian_chain(**{**SIZES, network: "nn"}).double()
    with pytest.raises(ValueError, match="context=x"):
        chain(Phase(torch.zeros(4, 2, dtype=F64)), Mixture().density)


def test_an_unknown_feature_is_named() -> None:
    with pytest.raises(ValueError, match="position, force, standardised, got 'momentum'"):
        hamiltonian_chain(**SIZES, reverse_sees=["position", "momentum"])


@pytest.mark.parametrize("options", [{"coordinates": "encoder"}, {"reverse_sees": ["standardised"]}], ids=str)
def test_the_encoders_coordinates_need_an_encoder(options: dict) -> None:
    chain = hamiltonian_chain(**{**SIZES, "context_dim": 0}, **options)
    for base in (None, Density(lambda z: -z.square().sum(-1))):
        target = Density(lambda z: -z.square().sum(-1), base=base)
        with pytest.raises(ValueError, match="encoder's posterior as its base"):
            chain(Phase(torch.zeros(4, 2)), target)


STIFF: dict[str, Any] = {"dim": 1, "context_dim": 0, "mass": "identity", "initial_step_size": 1.0}


@pytest.mark.parametrize(
    ("build", "limit"),
    [
        (lambda: hamiltonian_chain(**STIFF, num_hmc=2, num_leapfrog=1), 1000.0),
        (lambda: annealed_chain(**STIFF, num_steps=2), 30.0),
        (lambda: annealed_chain(**STIFF, num_steps=2, reverse="gaussian"), 30.0),
        (lambda: annealed_chain(**STIFF, num_steps=2, max_energy_error=5.0), 5.0),
        (lambda: stochastic_flow_chain(**STIFF, num_flows=2, flow="planar", move="hmc"), 30.0),
    ],
    ids=["hmc", "annealed", "ldvi", "annealed at 5", "stochastic flow"],
)
def test_a_trajectory_turns_back_at_the_limit_of_its_method(build: Callable[[], Chain], limit: float) -> None:
    torch.manual_seed(0)
    base = Density(lambda z: -0.5 * z.square().sum(-1))
    target = Density(lambda z: -20 * z.square().sum(-1), base=base)
    with torch.no_grad():
        info = build().double()(Phase(2 * torch.randn(4000, 1, dtype=F64)), target).info
    error, turned = info["energy_change"].abs(), info["diverged"]
    assert torch.equal(turned, error > limit)
    assert turned.any() and (error[~turned] > limit / 2).any()


def test_annealing_needs_a_base() -> None:
    start, target = Phase(torch.zeros(4, 2)), Density(lambda z: -z.square().sum(-1))
    with pytest.raises(ValueError, match="base"):
        annealed_chain(2, 0, 2)(start, target)
    with pytest.raises(ValueError, match="base"):
        Anneal(lambda density: HMC(density, 0.1, 1), beta=0.5)(start, target)


def test_kernels_and_steps_name_what_they_refuse() -> None:
    density = Mixture().density
    with pytest.raises(ValueError, match="got 0"):
        HMC(density, 0.1, num_steps=0)
    with pytest.raises(ValueError, match=r"got -0\.1"):
        HMC(density, -0.1, 1)
    with pytest.raises(ValueError, match=r"got 1\.2"):
        Anneal(lambda density: HMC(density, 0.1, 1), beta=1.2)
    with pytest.raises(TypeError, match="got Linear"):
        Bijection(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="got 0"):
        NetworkStepSize(0.1, context_dim=0)


def test_a_transform_of_matrices_is_refused() -> None:
    step = Bijection(torch.distributions.transforms.LowerCholeskyTransform())
    with pytest.raises(ValueError, match="vectors"):
        step(Phase(torch.zeros(3, 2, 2)), Mixture().density)


@pytest.mark.parametrize("partial", [False, True])
def test_time_steps_share_their_networks(partial: bool) -> None:
    """The number of parameters does not grow with the number of transitions."""

    def size(num_hmc: int) -> int:
        chain = hamiltonian_chain(**{**SIZES, "num_hmc": num_hmc}, partial=partial, mass="nn", accept="nn")
        return sum(parameter.numel() for parameter in chain.parameters())

    assert size(2) == size(5)


def test_step_sizes_start_where_they_were_told() -> None:
    assert StepSize(0.3)(None).item() == pytest.approx(0.3)
    assert StepSize(0.3, 4)(None).tolist() == pytest.approx([0.3] * 4)


def test_temperatures_rise_from_base_to_target() -> None:
    betas = Schedule(4)()
    torch.testing.assert_close(betas, torch.tensor([0.2, 0.4, 0.6, 0.8]))
    with torch.no_grad():
        schedule = Schedule(5)
        schedule.logits.normal_(generator=torch.Generator().manual_seed(0))
        betas = schedule()
    assert (betas.diff() > 0).all() and betas[0] > 0 and betas[-1] < 1


def test_cooling_undoes_the_heating() -> None:
    """ρ_0 = 1/√β_0 and Π_k ρ_k = 1; 1/√β falls quadratically."""
    cooling = QuadraticCooling(4, initial_beta=0.3).double()
    factors = torch.stack([cooling.factor(k)() for k in range(5)])
    assert factors[0].item() == pytest.approx(0.3**-0.5, rel=1e-6)
    assert factors.prod().item() == pytest.approx(1.0)
    heats = torch.stack([cooling.heat(k) for k in range(5)])
    torch.testing.assert_close(heats.diff().diff().diff(), torch.zeros(2, dtype=F64), rtol=0, atol=1e-12)
