"""What choosing among candidates reduces to, and its gradient by enumeration."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hmcvi import Density, Phase
from hmcvi.density import NormalDensity
from hmcvi.internal.random import standard_normal
from hmcvi.kernels import Resample, annealed_chain
from tests.support.problems import F64, Mixture

PROBLEM = Mixture()


def at(beta: float | Tensor) -> Resample:
    return Resample(4, lambda context: torch.as_tensor(beta, dtype=F64))


def log_weights(position: Tensor) -> Tensor:
    """log γ − log q0"""
    assert PROBLEM.density.base is not None
    return PROBLEM.density.log_prob(position) - PROBLEM.density.base.log_prob(position)


def weights(step: Resample, start: Tensor) -> tuple[Tensor, Tensor]:
    """log w of a chain of this step alone, and the log-probability of its choices."""
    assert PROBLEM.density.base is not None
    state, log_ratio, log_choice, *_ = step(Phase(start), PROBLEM.density)
    return state.log_density(PROBLEM.density) - PROBLEM.density.base.log_prob(start) + log_ratio, log_choice


def test_at_one_it_is_the_importance_weighted_bound() -> None:
    """Whichever is chosen, log w = log mean_k w_k over the candidates."""
    torch.manual_seed(0)
    start = PROBLEM.draw_base(50)
    torch.manual_seed(1)
    found, _ = weights(at(1.0), start)
    torch.manual_seed(1)
    transport = PROBLEM.density.base.transport  # type: ignore[union-attr]
    assert transport is not None
    own, fresh = transport.inv(start), standard_normal(start, None)
    candidates = transport(torch.stack([own, -own, fresh, -fresh]))
    torch.testing.assert_close(found, log_weights(candidates).logsumexp(0) - math.log(4))


def test_at_zero_it_is_a_draw_of_the_base() -> None:
    torch.manual_seed(0)
    start = PROBLEM.draw_base(50)
    state, log_ratio, log_choice, *_ = at(0.0)(Phase(start), PROBLEM.density)
    assert PROBLEM.density.base is not None
    change = PROBLEM.density.base.log_prob(start) - PROBLEM.density.base.log_prob(state.position)
    torch.testing.assert_close(log_ratio, change)
    torch.testing.assert_close(log_choice, torch.full_like(log_choice, -math.log(4)))


def test_gradient_with_its_score_term_is_that_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both outcomes of a pair, weighed by their probabilities, against the mean written out."""
    torch.manual_seed(0)
    start = PROBLEM.draw_base(1)
    beta = torch.tensor(0.4, dtype=F64, requires_grad=True)
    step = Resample(2, lambda context: beta)
    surrogate = torch.zeros(1, dtype=F64)
    for uniform in (0.0, 1.0 - 1e-12):
        number = torch.full((1,), uniform, dtype=F64)
        monkeypatch.setattr("hmcvi.internal.context.uniform", lambda like, generator, n=number: n)
        log_weight, log_choice = weights(step, start)
        score = log_weight + log_weight.detach() * log_choice
        surrogate = surrogate + log_choice.detach().exp() * score
    (found,) = torch.autograd.grad(surrogate.sum(), beta)

    transport = PROBLEM.density.base.transport  # type: ignore[union-attr]
    assert transport is not None
    each = log_weights(transport(torch.stack([transport.inv(start), -transport.inv(start)])))
    mean = (beta * each).logsumexp(0) - math.log(2) + (1 - beta) * ((beta * each).softmax(0) * each).sum(0)
    (expected,) = torch.autograd.grad(mean.sum(), beta)
    torch.testing.assert_close(found, expected)


def test_a_chain_without_a_possible_candidate_stays() -> None:
    def log_prob(z: Tensor) -> Tensor:
        return torch.where(z[..., 0].abs() < 9, -z.square().sum(-1), -torch.inf)

    target = Density(log_prob, base=NormalDensity(torch.tensor([100.0, 0.0]), 0.1))
    beta = torch.tensor(0.5, requires_grad=True)
    start = torch.tensor([[100.0, 0.0]])
    state, log_ratio, log_choice, *_ = Resample(4, lambda context: beta)(Phase(start), target)
    assert torch.equal(state.position, start) and state.log_prob == -torch.inf
    assert log_ratio == 0 and log_choice == 0
    (gradient,) = torch.autograd.grad((log_ratio + log_choice).sum(), beta)
    assert gradient == 0


@pytest.mark.parametrize("number", [3, 0, -2])
def test_candidates_come_in_pairs(number: int) -> None:
    with pytest.raises(ValueError, match=f"got {number}"):
        annealed_chain(2, 0, num_steps=2, num_candidates=number)
