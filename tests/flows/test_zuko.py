"""zuko's transforms and flows as steps: which way they go, what they see, what they train."""

from __future__ import annotations

import pytest
import torch

from hmcvi import Chain, Density, Phase, weigh
from hmcvi.flows import Bijection
from hmcvi.models import VAE
from tests.support.problems import F64
from tests.support.statistics import assert_mean

zuko = pytest.importorskip("zuko")

TARGET = Density(lambda z: -0.5 * z.square().sum(-1))


def flow(context: int = 0) -> torch.nn.Module:
    torch.manual_seed(0)
    return zuko.flows.MAF(3, context, transforms=2, hidden_features=(8,)).double()


def test_a_flow_moves_draws_of_its_base_to_its_samples() -> None:
    """log q(f(z)) = log base(z) − log|det ∂f/∂z|"""
    torch.manual_seed(0)
    model, z = flow(), torch.randn(10, 3, dtype=F64)
    state, log_ratio, *_ = Bijection(model)(Phase(z), TARGET)
    torch.testing.assert_close(model().log_prob(state.position), model().base.log_prob(z) - log_ratio)


def test_its_transform_goes_the_other_way() -> None:
    torch.manual_seed(0)
    model, z = flow(4), torch.randn(5, 10, 3, dtype=F64)
    x = torch.randn(10, 4, dtype=F64)
    there_and_back = Chain([Bijection(model), Bijection(model.transform)])
    state, log_ratio, *_ = there_and_back(Phase(z), TARGET, x)
    torch.testing.assert_close(state.position, z)
    torch.testing.assert_close(log_ratio, torch.zeros_like(log_ratio))


def test_a_flow_without_context_in_a_model_of_data() -> None:
    torch.manual_seed(0)
    x = torch.rand(6, 4, dtype=F64).bernoulli()
    vae = VAE(4, 3, Bijection(flow(), sees_context=False), hidden=(8,)).double()
    gradients = torch.autograd.grad(vae.bound(x).sum(), list(vae.chain.parameters()), allow_unused=True)
    assert len(gradients) == 8 and all(g is not None and (g != 0).any() for g in gradients)


def test_evidence() -> None:
    torch.manual_seed(0)
    z = 1.5 * torch.randn(50_000, 3, dtype=F64)
    log_q0 = torch.distributions.Normal(0.0, 1.5).log_prob(z).sum(-1)
    with torch.no_grad():
        log_weight = weigh(Bijection(flow()), Phase(z), log_q0, TARGET).log_weight
    assert_mean(log_weight.exp(), (2 * torch.pi) ** 1.5)


def test_other_modules_are_refused() -> None:
    for thing in (torch.nn.Linear(3, 3), zuko.distributions.DiagNormal(torch.zeros(3), torch.ones(3))):
        with pytest.raises(TypeError, match="expected a transform"):
            Bijection(thing)
