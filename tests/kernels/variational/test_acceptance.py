"""The acceptance step: its price, its probability, and what it does with a proposal that diverged."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hmcvi import Density, Phase
from hmcvi.dynamics.integrators import leapfrog
from hmcvi.flows import Leapfrog, System
from hmcvi.kernels import CholeskyMetric, Metropolis, ReverseAcceptance
from hmcvi.kernels.variational.acceptance import log1mexp
from tests.support.problems import F64, Mixture, perturb
from tests.support.statistics import assert_evidence, assert_mean

PROBLEM = Mixture()
METRIC = CholeskyMetric(torch.tensor([[1.1, 0.0], [0.3, 0.9]], dtype=F64))
STEP = torch.tensor(0.9, dtype=F64)


def trajectory(step: Tensor = STEP) -> Leapfrog:
    return Leapfrog(METRIC, lambda context: step, 3)


def start(count: int = 2000) -> Phase:
    torch.manual_seed(0)
    position = PROBLEM.draw_base(count)
    return Phase(position, METRIC.sample(position)).evaluate(PROBLEM.density)


def energies(phase: Phase) -> tuple[Tensor, Tensor, Phase]:
    """H(s*), H(s_HD) and s_HD, by the integrator alone."""
    system = System(PROBLEM.density, METRIC)
    end = leapfrog(system, phase, STEP, 3)
    return system.energy(phase), system.energy(end), end


def test_simple_acceptance_pays_the_energy_difference() -> None:
    """log_ratio = H(s_HD) − H(s*) where accepted, exactly 0 where rejected."""
    phase = start()
    before, after, end = energies(phase)
    transition = Metropolis(trajectory())(phase, PROBLEM.density)
    accepted = transition.info["accepted"]
    assert 0.2 < accepted.double().mean() < 0.95
    assert torch.equal(transition.log_ratio, (after - before).where(accepted, 0.0))
    assert torch.equal(transition.state.position, end.position.where(accepted[:, None], phase.position))
    assert torch.equal(transition.state.momentum, end.momentum.where(accepted[:, None], -phase.momentum))


@pytest.mark.parametrize("learned", [False, True])
def test_acceptance_has_the_metropolis_probability(learned: bool) -> None:
    phase = start(20)
    before, after, _ = energies(phase)
    probability = (before - after).clamp(max=0).exp()
    many = Phase(*(part.expand(20_000, *part.shape) for part in phase))
    reverse = perturb(ReverseAcceptance(2, 0, (8,))) if learned else None
    transition = Metropolis(trajectory(), reverse)(many, PROBLEM.density)
    accepted = transition.info["accepted"]
    assert accepted[:, probability == 1].all()
    fair = (probability > 0.01) & (probability < 0.99)
    assert fair.sum() > 3
    assert_mean(accepted[:, fair].double(), probability[fair])
    log_choice = probability.log().where(accepted, torch.log1p(-probability))
    torch.testing.assert_close(transition.log_choice, log_choice)


def test_learned_reverse_acceptance() -> None:
    """P(A=1|new) is 1 where H_rev ≤ H(new), else clip(e^{H(new)−H_rev} + tanh(net), δ, 1−δ)."""
    phase = start()
    before, after, _ = energies(phase)
    reverse = perturb(ReverseAcceptance(2, 0, (8,), clip=0.05), scale=0.5)
    transition = Metropolis(trajectory(), reverse, time=0.4)(phase, PROBLEM.density)
    accepted, new = transition.info["accepted"], transition.state
    gap = (after - before).where(accepted, before - after)  # H(new) − H_rev
    moment = torch.full_like(new.position[:, :1], 0.4)
    inputs = torch.cat([new.position, new.momentum, moment], -1)
    net = reverse.net.body(reverse.net.from_inputs(inputs))[:, 0]
    model = (gap.exp() + net.tanh()).clamp(0.05, 0.95).where(gap < 0, 1.0)
    log_reverse = model.log().where(accepted, torch.log1p(-model))
    torch.testing.assert_close(transition.log_ratio, log_reverse - transition.log_choice)
    assert 0 < (gap < 0).double().mean() < 1


@pytest.mark.parametrize("learned", [False, True])
def test_a_diverged_proposal_is_rejected(learned: bool) -> None:
    phase = start(50)
    reverse = perturb(ReverseAcceptance(2, 0, (8,))) if learned else None
    transition = Metropolis(trajectory(torch.tensor(1e6, dtype=F64)), reverse)(phase, PROBLEM.density)
    assert transition.info["diverged"].all() and not transition.info["accepted"].any()
    assert torch.equal(transition.state.position, phase.position)
    assert torch.equal(transition.state.momentum, -phase.momentum)
    assert torch.equal(transition.log_choice, torch.zeros(50, dtype=F64))
    assert transition.log_ratio.isfinite().all()


@pytest.mark.parametrize("height", [math.inf, 2000.0])
@pytest.mark.parametrize("move", ["turn back", "simple", "learned"])
def test_evidence_behind_a_wall(move: str, height: float) -> None:
    """A trajectory beyond the wall, where γ is nothing, turns back or is rejected, as its reversal knows.

    γ is the standard normal on z₁ < 1; trajectories of one step end, or do not end, behind the wall.
    """

    def log_prob(z: Tensor) -> Tensor:
        normal = -0.5 * z.square().sum(-1) - math.log(2 * math.pi)
        return normal.where(z[..., 0] < 1, normal - height)

    torch.manual_seed(0)
    density = Density(log_prob)
    one_step = Leapfrog(METRIC, lambda context: STEP, 1)
    reverse = perturb(ReverseAcceptance(2, 0, (8,))) if move == "learned" else None
    step = one_step if move == "turn back" else Metropolis(one_step, reverse)
    position = 2 * torch.randn(400_000, 2, dtype=F64)
    phase = Phase(position, METRIC.sample(position))
    log_start = torch.distributions.Normal(0.0, 2.0).log_prob(position).sum(-1)
    with torch.no_grad():
        transition = step(phase, density)
    state = transition.state
    log_weight = (
        state.log_density(density)
        - log_start
        - METRIC.log_prob(phase.momentum)
        + transition.log_ratio
        + METRIC.log_prob(state.momentum)
    )
    behind = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(1.0, dtype=F64))
    assert transition.info["diverged"].any()
    assert_mean(log_weight.exp(), behind)
    assert_mean(log_weight.exp() * (state.momentum[:, 0] > 0), behind / 2)


class Sceptic(nn.Module):
    """P(A=1|new) = simple², and nonsense where an acceptance is certain and nobody should ask."""

    def forward(self, state: Phase, simple: Tensor, time: float, context: object) -> Tensor:
        return torch.where(simple < 1, simple.square(), 0.5)


def test_a_certain_acceptance_is_not_doubted() -> None:
    """Where H_rev ≤ H(new) no rejection leads to the new state: a model asked there loses mass."""
    torch.manual_seed(0)
    position = PROBLEM.draw_base(200_000)
    phase = Phase(position, METRIC.sample(position))
    with torch.no_grad():
        transition = Metropolis(trajectory(), Sceptic())(phase, PROBLEM.density)
    state = transition.state
    log_weight = state.log_density(PROBLEM.density) - PROBLEM.log_base(position) + transition.log_ratio
    log_weight = log_weight + METRIC.log_prob(state.momentum) - METRIC.log_prob(phase.momentum)
    assert_evidence(log_weight, PROBLEM.log_evidence, least_ess=5000)


@given(st.floats(min_value=-700, max_value=-1e-300))
def test_log1mexp_is_accurate(x: float) -> None:
    value = log1mexp(torch.tensor(x, dtype=F64)).item()
    expected = math.log(-math.expm1(x)) if x > -0.1 else math.log1p(-math.exp(x))
    assert value == pytest.approx(expected, rel=1e-13, abs=1e-300)


def test_log1mexp_has_finite_gradients() -> None:
    x = torch.tensor([-1e-300, -1e-8, -0.6931, -0.6932, -50.0, -1e4], dtype=F64, requires_grad=True)
    (grad,) = torch.autograd.grad(log1mexp(x).sum(), x)
    torch.testing.assert_close(grad, -1 / torch.expm1(-x.detach()))
