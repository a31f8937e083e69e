"""Leapfrog: reversible, volume preserving, of order two, one force per step."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hmcvi import Density, Phase
from hmcvi.flows import Leapfrog, System
from hmcvi.flows.integrators import leapfrog
from hmcvi.kernels import IdentityMetric
from tests.contracts.members import MetricExample, metrics
from tests.problems import F64, Mixture

PROBLEM = Mixture()
over_metrics = pytest.mark.parametrize(
    "example", [*metrics(dim=2), *metrics(6, dim=2)], ids=lambda e: type(e.metric).__name__
)


def start(count: int = 6) -> Phase:
    torch.manual_seed(0)
    position = PROBLEM.draw(count)
    return Phase(position, torch.randn_like(position))


@over_metrics
@pytest.mark.parametrize("beta", [None, 0.3])
def test_running_back_leads_back(example: MetricExample, beta: float | None) -> None:
    beta_tensor = None if beta is None else torch.tensor(beta, dtype=F64)
    system = System(PROBLEM.density, example.metric, beta_tensor)
    phase = start()
    there = leapfrog(system, phase, torch.tensor(0.3, dtype=F64), 7)
    assert (there.position - phase.position).norm(dim=-1).max() > 0.2
    back = leapfrog(system, Phase(there.position, -there.momentum), torch.tensor(0.3, dtype=F64), 7)
    torch.testing.assert_close(back.position, phase.position, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(back.momentum, -phase.momentum, rtol=1e-10, atol=1e-10)


@over_metrics
def test_error_is_of_second_order(example: MetricExample) -> None:
    """Over a fixed time the error falls as ε²: the slope of log error against log ε is 2."""
    system, phase, time = System(PROBLEM.density, example.metric), start(), 1.2

    @torch.no_grad()
    def end(num_steps: int) -> Tensor:
        state = leapfrog(system, phase, torch.tensor(time / num_steps, dtype=F64), num_steps)
        return torch.cat([state.position, state.momentum], -1)

    # the difference of neighbours has the order of the error, and needs no finer solution
    ends = [end(count) for count in (50, 100, 200, 400)]
    gaps = [(a - b).norm() for a, b in pairwise(ends)]
    slopes = [(a / b).log2().item() for a, b in pairwise(gaps)]
    assert all(abs(slope - 2) < 0.05 for slope in slopes), slopes


@over_metrics
def test_energy_error_is_of_second_order(example: MetricExample) -> None:
    system, phase = System(PROBLEM.density, example.metric), start().evaluate(PROBLEM.density)

    def energy_error(num_steps: int) -> Tensor:
        state = leapfrog(system, phase, torch.tensor(1.2 / num_steps, dtype=F64), num_steps)
        return (system.energy(state) - system.energy(phase)).norm()

    slope = (energy_error(200) / energy_error(400)).log2()
    assert abs(slope - 2) < 0.02


def test_harmonic_oscillator_turns() -> None:
    """(z, v) of the standard normal rotates: after time 2π it is back, to second order."""
    system = System(Density(lambda z: -0.5 * z.square().sum(-1)), IdentityMetric())
    phase = start()
    turned = leapfrog(system, phase, torch.tensor(2 * math.pi / 4000, dtype=F64), 1000)
    torch.testing.assert_close(turned.position, phase.momentum, rtol=0, atol=1e-6)
    torch.testing.assert_close(turned.momentum, -phase.position, rtol=0, atol=1e-6)


def test_half_a_kick_at_either_end() -> None:
    """Two merged steps are two steps."""
    system, phase, step = System(PROBLEM.density, IdentityMetric()), start(), torch.tensor(0.3, dtype=F64)
    merged = leapfrog(system, phase, step, 2)
    apart = leapfrog(system, leapfrog(system, phase, step, 1), step, 1)
    torch.testing.assert_close(merged.position, apart.position, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(merged.momentum, apart.momentum, rtol=1e-13, atol=1e-13)


def test_at_temperature_zero_only_the_base_pulls() -> None:
    """β = 0 runs the dynamics of the base, β = 1 those of the target."""
    phase, step = start(), torch.tensor(0.3, dtype=F64)
    for beta, density in ((0.0, PROBLEM.base), (1.0, PROBLEM.density)):
        tempered = System(PROBLEM.density, IdentityMetric(), torch.tensor(beta, dtype=F64))
        plain = System(density, IdentityMetric())
        torch.testing.assert_close(
            leapfrog(tempered, phase, step, 4).position, leapfrog(plain, phase, step, 4).position
        )


def test_a_tempered_system_needs_a_base() -> None:
    with pytest.raises(ValueError, match="base"):
        System(Density(PROBLEM.log_prob), IdentityMetric(), torch.tensor(0.5))


@pytest.mark.parametrize("num_steps", [0, -3])
def test_no_steps_are_refused(num_steps: int) -> None:
    with pytest.raises(ValueError, match=f"got {num_steps}"):
        Leapfrog(IdentityMetric(), lambda context: torch.tensor(0.1), num_steps)
