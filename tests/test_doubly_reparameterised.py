"""Doubly reparameterised gradients: unbiased against quadrature, and with a signal that many samples keep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hmcvi import Bound, Chain, Context, Density, Phase, Weights, weigh
from hmcvi.flows import set_memory
from hmcvi.internal.context import Randomness
from hmcvi.kernels import IdentityMass, Langevin, hamiltonian_chain, langevin_chain
from hmcvi.objectives import power_mean
from tests.support.problems import F64, LinearGaussian, perturb
from tests.support.statistics import Z, assert_mean, mean_and_error

# θ = (μ, log σ) of a q0 wider than the target, its a, and log ε of a Langevin step, all in one dimension
THETA = torch.tensor([0.4, 0.2, 0.5, math.log(0.15)], dtype=F64)


def log_gamma(z: Tensor, a: Tensor) -> Tensor:
    """−2a √(1 + z²) − (z − 1)²/2"""
    return (-2 * a[..., None] * (1 + z**2).sqrt() - (z - 1) ** 2 / 2).sum(-1)


def log_normal(z: Tensor, loc: Tensor, log_scale: Tensor) -> Tensor:
    white = (z - loc) * (-log_scale).exp()
    return (-0.5 * white.square() - log_scale - 0.5 * math.log(2 * math.pi)).sum(-1)


class Fixed(Randomness):
    """Normal numbers given in advance."""

    def __init__(self, numbers: Tensor) -> None:
        super().__init__()
        self.numbers = numbers

    def normal(self, like: Tensor) -> Tensor:
        return self.numbers


MOVES: dict[str, list[Callable[[Context], Tensor] | None]] = {  # temperatures of Langevin steps
    "none": [],
    "at the target": [None],
    "at β = 0.6": [lambda context: torch.tensor(0.6, dtype=F64)],
}
over_moves = pytest.mark.parametrize("moves", MOVES)


def weights(theta: Tensor, initial: Tensor, noise: Tensor, moves: str) -> Weights:
    """theta: [N, 4], a copy for each run; initial, noise: [K, N, 1], standard normal numbers."""
    loc, log_scale = theta[:, 0:1], theta[:, 1:2]
    position = loc + log_scale.exp() * initial
    target = Density(log_gamma, theta[:, 2], base=Density(log_normal, loc, log_scale))
    chain = Chain(Langevin(IdentityMass(), lambda context: theta[:, 3:].exp(), beta) for beta in MOVES[moves])
    log_q0 = log_normal(initial, torch.zeros_like(loc), torch.zeros_like(loc)) - log_scale[:, 0]
    return weigh(chain, Phase(position), log_q0, target, Context(None, Fixed(noise)))


def sampled_gradients(bound: Bound, num_chains: int, count: int, moves: str) -> Tensor:
    """∇L of `count` independent runs.  [count, 4]"""
    theta = THETA.repeat(count, 1).requires_grad_()
    initial, noise = torch.randn(2, num_chains, count, 1, dtype=F64)
    value = bound(weights(theta, initial, noise, moves))
    return torch.autograd.grad(value.sum(), theta, materialize_grads=True)[0]


def exact_gradient(power: float, moves: str) -> Tensor:
    """∇E[L] of two chains, by quadrature over all their random numbers.  [4]"""
    nodes, shares = np.polynomial.hermite_e.hermegauss(24 if MOVES[moves] else 60)
    shares = shares / shares.sum()
    dims = 4 if MOVES[moves] else 2
    points = torch.tensor(list(itertools.product(nodes, repeat=dims)), dtype=F64).T[..., None]
    share = torch.tensor(list(itertools.product(shares, repeat=dims)), dtype=F64).prod(-1)
    theta = THETA.clone().requires_grad_()
    noise = points[2:] if MOVES[moves] else points[:2]
    values = weights(theta.expand(len(share), -1), points[:2], noise, moves)
    expected = (share * power_mean(values.log_weight, power)).sum()
    return torch.autograd.grad(expected, theta, materialize_grads=True)[0]


@over_moves
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0], ids=["IWAE", "Rényi", "ELBO"])
def test_unbiased(alpha: float, moves: str) -> None:
    torch.manual_seed(0)
    gradients = sampled_gradients(Bound(alpha, gradient="dreg"), 2, 200_000, moves)
    assert_mean(gradients, exact_gradient(1 - alpha, moves))


def test_the_other_one_is_unbiased_and_varies_more() -> None:
    torch.manual_seed(0)
    total = sampled_gradients(Bound(0.0), 2, 200_000, moves="none")
    assert_mean(total, exact_gradient(1.0, moves="none"))
    doubly = sampled_gradients(Bound(0.0, gradient="dreg"), 2, 200_000, moves="none")
    assert (doubly.var(0)[:2] < 0.5 * total.var(0)[:2]).all()


@pytest.mark.parametrize("moves", ["none", "at the target"])
def test_the_signal_of_many_samples(moves: str) -> None:
    """Of μ: the ratio of mean and deviation rises with K, while that of the total derivative falls."""

    def signal(gradient: str, num_chains: int) -> float:
        torch.manual_seed(0)
        mean, error = mean_and_error(
            sampled_gradients(Bound(0.0, gradient=gradient), num_chains, 20_000, moves)
        )
        return float(mean[0].abs() / error[0])

    assert signal("dreg", 64) > 2 * signal("dreg", 4) > 2 * Z
    assert signal("total", 64) < signal("total", 4)


def test_the_value_and_the_gradient_of_the_target_stay() -> None:
    torch.manual_seed(0)
    theta = THETA.repeat(5, 1).requires_grad_()
    run = weights(theta, *torch.randn(2, 3, 5, 1, dtype=F64), moves="at β = 0.6")
    total, doubly = (Bound(0.0, gradient=gradient)(run) for gradient in ("total", "dreg"))
    torch.testing.assert_close(doubly, total, rtol=1e-14, atol=1e-14)
    of_total, of_doubly = (torch.autograd.grad(b.sum(), theta, retain_graph=True)[0] for b in (total, doubly))
    torch.testing.assert_close(of_total[:, 2:], of_doubly[:, 2:])
    assert (of_total[:, :2] - of_doubly[:, :2]).abs().min() > 1e-3


def test_at_the_posterior_it_does_not_vary() -> None:
    """Where q0 is the posterior log w is constant, and so is its derivative along the path: zero."""
    model = LinearGaussian(latent_dim=1)
    vae = model.vae(width=1.0)
    bound = vae.bound(model.data(3), 5, Bound(0.0, gradient="dreg")).sum()
    for gradient in torch.autograd.grad(bound, list(vae.encoder.parameters())):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def test_chains_that_compute_their_steps_again() -> None:
    model = LinearGaussian()

    def gradients(memory: str) -> list[Tensor]:
        chain = perturb(langevin_chain(2, 4, 3, control="both", hidden=(8,), coordinates="encoder"))
        vae = model.vae(set_memory(chain, memory))
        torch.manual_seed(1)
        bound = vae.bound(model.data(3), 4, Bound(0.0, gradient="dreg")).sum()
        return list(torch.autograd.grad(bound, list(vae.parameters())))

    for stored, recomputed in zip(gradients("store"), gradients("checkpoint"), strict=True):
        torch.testing.assert_close(recomputed, stored)


def test_failed_chains_have_no_gradient() -> None:
    theta = THETA.repeat(2, 1).requires_grad_()
    run = weights(theta, *torch.randn(2, 3, 2, 1, dtype=F64), moves="none")
    dead = torch.tensor([[True, True], [True, False], [True, False]])
    run = run._replace(log_weight=run.log_weight.where(~dead, -torch.inf))
    for alpha in (0.0, 0.5):
        bound = Bound(alpha, gradient="dreg")(run)
        (gradient,) = torch.autograd.grad(bound.sum(), theta, retain_graph=True)
        assert bound[0] == -torch.inf and bound[1].isfinite()
        assert (gradient[0] == 0).all() and gradient[1].isfinite().all()


def test_it_refuses_what_it_cannot_do() -> None:
    model, bound = LinearGaussian(), Bound(0.0, gradient="dreg")
    accepting = model.vae(perturb(hamiltonian_chain(2, 4, 1, 1, accept="simple", hidden=(4,))))
    with pytest.raises(ValueError, match="accept or reject"):
        accepting.bound(model.data(2), 3, bound)
    start = Phase(torch.zeros(3, 1, dtype=F64))
    parameter = torch.zeros((), dtype=F64, requires_grad=True)
    target = Density(lambda z: -z.square().sum(-1) * parameter)
    with pytest.raises(ValueError, match="learned parameters"):
        bound(weigh(Chain(), start, torch.zeros(3, dtype=F64), target))
    with pytest.raises(ValueError, match="got 'path'"):
        Bound(gradient="path")
