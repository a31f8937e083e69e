"""Likelihoods against torch's distributions, with both of their derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Bernoulli, Normal

from hmcvi.models.likelihood import bernoulli_log_prob, normal_log_prob
from tests.support.problems import F64


def test_normal() -> None:
    z, loc, log_scale = torch.randn(3, 4, 5, 2, dtype=F64).unbind()
    expected = Normal(loc, log_scale.exp()).log_prob(z).sum(-1)
    torch.testing.assert_close(normal_log_prob(z, loc, log_scale.exp()), expected)


@pytest.mark.parametrize("shape", [(4,), (5, 4), (3, 5, 4), (3, 1, 4)], ids=str)
@pytest.mark.parametrize("soft", [False, True])
def test_bernoulli_and_its_derivatives(shape: tuple[int, ...], soft: bool) -> None:
    """Samples in front of the data broadcast; grey pixels are allowed."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(shape, dtype=F64)).requires_grad_()
    x = torch.rand(*shape[-2:-1], 4, dtype=F64) if len(shape) < 3 else torch.rand(5, 4, dtype=F64)
    x = (x if soft else x.round()).requires_grad_()
    distribution = Bernoulli(logits=logits, validate_args=False)
    torch.testing.assert_close(bernoulli_log_prob(logits, x), distribution.log_prob(x).sum(-1))
    assert torch.autograd.gradcheck(bernoulli_log_prob, (logits, x))
    assert torch.autograd.gradgradcheck(bernoulli_log_prob, (logits, x))


def test_bernoulli_far_out() -> None:
    logits = torch.tensor([[-800.0, 800.0], [800.0, -800.0]], dtype=F64, requires_grad=True)
    value = bernoulli_log_prob(logits, torch.tensor([0.0, 1.0], dtype=F64))
    torch.testing.assert_close(value, torch.tensor([0.0, -1600.0], dtype=F64))
    (grad,) = torch.autograd.grad(value.sum(), logits)
    torch.testing.assert_close(grad, torch.tensor([[0.0, 0.0], [-1.0, 1.0]], dtype=F64))
