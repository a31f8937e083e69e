"""Threads of states and sums of logs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmcvi import Chain, Context, Phase, Step, Transition
from hmcvi.flows import Bijection, Leapfrog, flow_chain
from hmcvi.kernels import DrawMomentum, DropMomentum, IdentityMass, Metropolis, StepSize
from tests.support.problems import F64, Mixture

PROBLEM = Mixture()


def hmc() -> list[Step]:
    mass = IdentityMass()
    return [DrawMomentum(mass), Metropolis(Leapfrog(mass, StepSize(0.5), 2)), DropMomentum(mass)]


def test_logs_add_up() -> None:
    steps = [step.double() for step in hmc()]
    state, totals = Phase(PROBLEM.draw_base(7)), [torch.zeros(7, dtype=F64)] * 3
    torch.manual_seed(0)
    chained = Chain(steps)(state, PROBLEM.density)
    torch.manual_seed(0)
    for step in steps:
        transition = step(state, PROBLEM.density)
        state = transition.state
        totals = [total + log for total, log in zip(totals, transition[1:4], strict=True)]
    torch.testing.assert_close(chained.state.position, state.position)
    for found, wanted in zip(chained[1:4], totals, strict=True):
        torch.testing.assert_close(found, wanted)


def test_bracketing_does_not_matter() -> None:
    """(a b) c = a (b c) = a b c, in state, logs and reports."""
    a, b = hmc(), hmc()
    start = Phase(PROBLEM.draw_base(7))

    def run(chain: Chain) -> Transition:
        torch.manual_seed(0)
        return chain.double()(start, PROBLEM.density)

    flat = run(Chain([*a, *b]))
    for bracketed in (Chain([Chain(a), *b]), Chain([*a, Chain(b)]), Chain([Chain([Chain(a), Chain(b)])])):
        nested = run(bracketed)
        assert torch.equal(nested.state.position, flat.state.position)
        torch.testing.assert_close(nested.log_ratio, flat.log_ratio, rtol=1e-13, atol=1e-13)
        assert nested.info.keys() == flat.info.keys()
        for name, report in flat.info.items():
            assert torch.equal(nested.info[name], report)
    assert flat.info["accepted"].shape == (2, 7) and flat.info["momentum"].shape == (4, 7)


def test_the_first_answer_about_the_force_counts() -> None:
    flow = Bijection(torch.distributions.transforms.AffineTransform(0.0, 2.0))
    assert Chain().uses_force is None and Chain([Chain(), DrawMomentum(IdentityMass())]).uses_force is None
    assert Chain(hmc()).uses_force is True and Chain([DrawMomentum(IdentityMass()), flow]).uses_force is False
    assert Chain([flow_chain(2, 0, 2), *hmc()]).uses_force is False
    assert Chain([flow_chain(2, 0, 0), *hmc()]).uses_force is True


def test_a_phase_is_evaluated_once() -> None:
    calls: list[Tensor] = []

    class Watched(type(PROBLEM.density)):
        def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
            calls.append(position)
            return super().value_and_grad(position)

    density = Watched(PROBLEM.log_prob)
    phase = Phase(PROBLEM.draw_base(3)).evaluate(density).evaluate(density)
    torch.testing.assert_close(phase.log_density(density), PROBLEM.log_prob(phase.position))
    assert len(calls) == 1


def test_choosing_between_phases() -> None:
    here = Phase(*(torch.ones(3, 2), torch.ones(3, 2), torch.ones(3), torch.ones(3, 2)))
    there = Phase(*(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3), torch.zeros(3, 2)))
    mask = torch.tensor([True, False, True])
    chosen = here.where(mask, there)
    for part in chosen:
        assert torch.equal(part.reshape(3, -1)[:, 0], mask.float())
    unknown = here._replace(grad=None).where(mask, there)
    assert unknown.grad is None and unknown.log_prob is not None


def test_networks_of_the_data_need_the_data() -> None:
    with pytest.raises(ValueError, match="context=x"):
        Context(None)(torch.nn.Identity())
    with pytest.raises(ValueError, match="context=x"):
        flow_chain(2, 3, 1, hidden=(8,)).double()(Phase(PROBLEM.draw_base(3)), PROBLEM.density)
