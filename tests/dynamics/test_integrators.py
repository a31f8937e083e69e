"""Splittings: reversible, volume preserving, of order two, one force per stage."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hmcvi import Density, Phase
from hmcvi.flows import Leapfrog, Splitting, System, leapfrog, three_stage, two_stage
from hmcvi.kernels import IdentityMetric
from tests.contracts.members import MetricExample, metrics
from tests.support.problems import F64, Mixture

PROBLEM = Mixture()
INTEGRATORS = {"leapfrog": leapfrog, "two_stage": two_stage, "three_stage": three_stage}
BETTER = [two_stage, three_stage]
over_integrators = pytest.mark.parametrize("integrator", INTEGRATORS.values(), ids=INTEGRATORS)
over_metrics = pytest.mark.parametrize(
    "example", [*metrics(dim=2), *metrics(6, dim=2)], ids=lambda e: type(e.metric).__name__
)


def start(count: int = 6) -> Phase:
    torch.manual_seed(0)
    position = PROBLEM.draw(count)
    return Phase(position, torch.randn_like(position))


@over_metrics
@over_integrators
@pytest.mark.parametrize("beta", [None, 0.3])
def test_running_back_leads_back(example: MetricExample, integrator: Splitting, beta: float | None) -> None:
    beta_tensor = None if beta is None else torch.tensor(beta, dtype=F64)
    system = System(PROBLEM.density, example.metric, beta_tensor)
    phase = start()
    there = integrator(system, phase, torch.tensor(0.3, dtype=F64), 7)
    assert (there.position - phase.position).norm(dim=-1).max() > 0.2
    back = integrator(system, Phase(there.position, -there.momentum), torch.tensor(0.3, dtype=F64), 7)
    torch.testing.assert_close(back.position, phase.position, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(back.momentum, -phase.momentum, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("num_steps", [1, 2, 5])
@over_metrics
@over_integrators
def test_loops_of_programs_end_where_trajectories_do(
    example: MetricExample, integrator: Splitting, num_steps: int, by_column: bool
) -> None:
    system, phase = System(PROBLEM.density, example.metric), start()
    step_size = torch.tensor(0.3, dtype=F64)
    wanted = integrator(system, phase, step_size, num_steps)
    found = integrator.repeated(system, phase, step_size, torch.tensor(num_steps), by_column)
    torch.testing.assert_close(tuple(found), tuple(wanted), rtol=1e-12, atol=1e-12)


@over_metrics
@over_integrators
def test_volume_is_preserved(example: MetricExample, integrator: Splitting) -> None:
    """The Jacobian J of (z, v) ↦ (z', v') is symplectic, Jᵀ Ω J = Ω, so |det J| = 1."""
    system, phase = System(PROBLEM.density, example.metric), start()
    point = torch.cat([phase.position, phase.momentum], -1).requires_grad_()
    end = integrator(system, Phase(*point.chunk(2, -1)), torch.tensor(0.7, dtype=F64), 3)
    image = torch.cat([end.position, end.momentum], -1)
    rows = [torch.autograd.grad(image[:, i].sum(), point, retain_graph=True)[0] for i in range(4)]
    jacobian, identity = torch.stack(rows, 1), torch.eye(2, dtype=F64)
    torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], torch.zeros(6, dtype=F64))
    omega = torch.block_diag(identity, -identity).roll(2, 1)  # [[0, I], [−I, 0]]
    torch.testing.assert_close(jacobian.mT @ omega @ jacobian, omega.expand(6, 4, 4))


def test_coefficients_are_those_of_a_method_of_second_order() -> None:
    for splitting in INTEGRATORS.values():
        assert splitting.kicks == splitting.kicks[::-1] and splitting.drifts == splitting.drifts[::-1]
        assert sum(splitting.kicks) == pytest.approx(1, abs=1e-14)
        assert sum(splitting.drifts) == pytest.approx(1, abs=1e-14)
        assert len(splitting.kicks) == len(splitting.drifts) + 1


def test_coefficients_are_the_published_ones() -> None:
    """McLachlan's root in closed form; the three-stage pair satisfies 6ab − 2a − b + ½ = 0 with its own b."""
    root = (2 * math.sqrt(326) + 36) ** (1 / 3)
    assert two_stage.kicks[0] == pytest.approx(0.5 - root / 12 + 1 / (6 * root), abs=1e-14)
    a, b = three_stage.drifts[0], three_stage.kicks[0]
    assert 6 * a * b - 2 * a - b + 0.5 == pytest.approx(0, abs=1e-12)
    assert b == pytest.approx(0.11888010966548, abs=1e-14)


@over_integrators
@pytest.mark.parametrize("num_steps", [1, 4])
def test_one_force_per_stage(integrator: Splitting, num_steps: int) -> None:
    calls: list[None] = []

    def log_prob(z: Tensor) -> Tensor:
        calls.append(None)
        return PROBLEM.log_prob(z)

    density = Density(log_prob)
    phase = start().evaluate(density)
    calls.clear()
    integrator(System(density, IdentityMetric()), phase, torch.tensor(0.3, dtype=F64), num_steps)
    assert len(calls) == num_steps * integrator.num_stages == num_steps * len(integrator.drifts)


@torch.no_grad()
def end_of(integrator: Splitting, system: System, phase: Phase, time: float, num_steps: int) -> Phase:
    return integrator(system, phase, torch.tensor(time / num_steps, dtype=F64), num_steps)


@over_metrics
def test_error_is_of_second_order(example: MetricExample) -> None:
    check_order(leapfrog, example)


@pytest.mark.parametrize("integrator", BETTER)
@pytest.mark.parametrize("example", metrics(dim=2)[::3], ids=lambda e: type(e.metric).__name__)
def test_error_of_better_splittings_is_of_second_order(integrator: Splitting, example: MetricExample) -> None:
    check_order(integrator, example)


def check_order(integrator: Splitting, example: MetricExample) -> None:
    """Over a fixed time the error falls as ε²: the slope of log error against log ε is 2."""
    system, phase = System(PROBLEM.density, example.metric), start()

    def end(num_steps: int) -> Tensor:
        state = end_of(integrator, system, phase, 1.2, num_steps)
        return torch.cat([state.position, state.momentum], -1)

    # the difference of neighbours has the order of the error, and needs no finer solution
    ends = [end(count) for count in (25, 50, 100, 200)]
    gaps = [(a - b).norm() for a, b in pairwise(ends)]
    slopes = [(a / b).log2().item() for a, b in pairwise(gaps)]
    assert all(abs(slope - 2) < 0.05 for slope in slopes), slopes


@over_metrics
def test_energy_error_is_of_second_order(example: MetricExample) -> None:
    system, phase = System(PROBLEM.density, example.metric), start().evaluate(PROBLEM.density)

    def energy_error(num_steps: int) -> Tensor:
        state = end_of(leapfrog, system, phase, 1.2, num_steps)
        return (system.energy(state) - system.energy(phase)).norm()

    slope = (energy_error(200) / energy_error(400)).log2()
    assert abs(slope - 2) < 0.02


@pytest.mark.parametrize("num_forces", [6, 12, 24, 48])
def test_better_splittings_err_less_for_the_same_number_of_forces(num_forces: int) -> None:
    """On a Gaussian of eight frequencies, started at stationarity, the energy error is less than half."""
    torch.manual_seed(0)
    frequencies = torch.linspace(0.3, 1.0, 8, dtype=F64)
    density = Density(lambda z: -0.5 * (frequencies * z).square().sum(-1))
    system, position = System(density, IdentityMetric()), torch.randn(2_000, 8, dtype=F64) / frequencies
    phase = Phase(position, torch.randn_like(position)).evaluate(density)

    def energy_error(integrator: Splitting) -> Tensor:
        end = end_of(integrator, system, phase, 6.0, num_forces // integrator.num_stages)
        return (system.energy(end) - system.energy(phase)).square().mean().sqrt()

    for splitting in BETTER:
        assert energy_error(splitting) < 0.5 * energy_error(leapfrog)


@over_integrators
def test_harmonic_oscillator_turns(integrator: Splitting) -> None:
    """(z, v) of the standard normal rotates: after time π/2 it is (v, −z), to second order."""
    system = System(Density(lambda z: -0.5 * z.square().sum(-1)), IdentityMetric())
    phase = start()
    turned = end_of(integrator, system, phase, math.pi / 2, 1000)
    torch.testing.assert_close(turned.position, phase.momentum, rtol=0, atol=1e-6)
    torch.testing.assert_close(turned.momentum, -phase.position, rtol=0, atol=1e-6)


@over_integrators
def test_steps_are_merged(integrator: Splitting) -> None:
    """Two steps in one call are two steps: half a kick at either end becomes a whole one between."""
    system, phase, step = System(PROBLEM.density, IdentityMetric()), start(), torch.tensor(0.3, dtype=F64)
    merged = integrator(system, phase, step, 2)
    apart = integrator(system, integrator(system, phase, step, 1), step, 1)
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
