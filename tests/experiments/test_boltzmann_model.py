"""Boltzmann machines against sums over their states, relaxations against draws from the mixture."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from experiments.models import BoltzmannMachine, Relaxation, boltzmann
from hmcvi import Density
from hmcvi.evidence import importance
from tests.support.problems import F64
from tests.support.statistics import assert_mean


def machines(*shape: int) -> BoltzmannMachine:
    return BoltzmannMachine.random(
        *shape, generator=torch.Generator().manual_seed(0), scale=1.5, steepness=2.0
    )


def all_states(num_units: int) -> Tensor:
    return torch.tensor(list(itertools.product([-1.0, 1.0], repeat=num_units)), dtype=F64)


def test_random_machines_have_the_spectrum_that_was_asked_for() -> None:
    machine = BoltzmannMachine.random(200, 6, generator=torch.Generator().manual_seed(0))
    assert (machine.weights.diagonal(dim1=-2, dim2=-1) == 0).all()
    # ‖W‖² = Σ e_i² − Σ V_ii², V_ii = Σ_k R_ik² e_k, E R_ik⁴ = 3 / (n (n + 2)), the e_k independent of mean 0
    n = torch.linspace(-8, 8, 4001, dtype=F64)
    second = (
        36 * ((2 * n).tanh().square() * (-0.5 * n.square()).exp()).sum() / (-0.5 * n.square()).exp().sum()
    )
    squares = machine.weights.square().sum((-2, -1))
    assert_mean(squares, 6 * second * (1 - 3 / (6 + 2)))
    assert_mean(machine.biases.square().flatten(), torch.tensor(0.01, dtype=F64))


def test_moments_are_sums_over_states() -> None:
    machine = machines(2, 6)
    exact, states = machine.exact_moments(), all_states(6)
    for item in range(2):
        weights, biases = machine.weights[item], machine.biases[item]
        mass = torch.stack([(0.5 * s @ weights @ s + biases @ s).exp() for s in states])
        torch.testing.assert_close(exact.log_z[item], mass.sum().log())
        share = mass / mass.sum()
        torch.testing.assert_close(exact.mean[item], share @ states)
        centred = states - share @ states
        torch.testing.assert_close(exact.covariance[item], centred.mT @ (share[:, None] * centred))


def test_batches_of_states_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their order: the largest states may come last."""
    machine = machines(2, 7)
    at_once = machine.exact_moments()
    monkeypatch.setattr(boltzmann, "BATCH", 1)
    torch.testing.assert_close(machine.exact_moments(), at_once)


def test_the_tightest_relaxation_has_the_least_largest_eigenvalue() -> None:
    """Below that of D = −λ I and of any other diagonal near it that leaves W + D positive."""
    machine = machines(3, 8)
    relaxation, plain = Relaxation.tightest(machine), Relaxation.of(machine)

    def ends(diagonal: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.linalg.eigvalsh(machine.weights + torch.diag_embed(diagonal))
        return spectrum[..., 0], spectrum[..., -1]

    least, largest = ends(relaxation.diagonal)
    assert (least > -1e-9).all() and (largest < ends(plain.diagonal)[1]).all()
    noise = torch.randn(500, 3, 8, dtype=F64, generator=torch.Generator().manual_seed(0))
    lower, _ = ends(nearby := relaxation.diagonal + 0.05 * noise)
    feasible = nearby - lower.clamp(max=0)[..., None]  # raised until W + D is positive again
    assert (ends(feasible)[1] > largest - 1e-7).all()


def test_relaxations_are_mixtures_over_states() -> None:
    """γ(x) / Z = Σ_s P(s) N(x; Qᵀs, I), with the moments that are said, rotated or not."""
    torch.manual_seed(0)
    machine, axes = machines(8), torch.linalg.qr(torch.randn(8, 8, dtype=F64)).Q
    plain = Relaxation.of(machine)
    states = all_states(8)
    share = machine.log_prob(states).softmax(0)
    for relaxation in (plain, plain.rotated(axes)):
        exact = relaxation.moments(machine.exact_moments())
        centres = states @ relaxation.root
        x = 2 * torch.randn(50, 8, dtype=F64)
        normal = -0.5 * (x[:, None] - centres).square().sum(-1) - 4 * math.log(2 * math.pi)
        mixture = (share.log() + normal).logsumexp(-1)
        torch.testing.assert_close(relaxation.log_prob(x) - exact.log_z, mixture)
        mean = share @ centres
        torch.testing.assert_close(exact.mean, mean)
        spread = (centres - mean).mT @ (share[:, None] * (centres - mean))
        torch.testing.assert_close(exact.covariance, spread + torch.eye(8, dtype=F64))


def test_draws_have_the_moments_of_the_mixture() -> None:
    relaxation = Relaxation.tightest(machines(6))
    exact = relaxation.moments(relaxation.machine.exact_moments())
    draws = relaxation.sample(20_000, torch.Generator().manual_seed(0))
    assert_mean(draws, exact.mean)
    assert_mean((draws - exact.mean).square(), exact.covariance.diagonal())


def test_gradients_are_those_of_autograd() -> None:
    relaxation = Relaxation.of(machines(3, 5))
    x = 5 * torch.randn(7, 3, 5, dtype=F64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(relaxation.value_and_grad(x), Density(relaxation.log_prob).value_and_grad(x))
    far = relaxation.value_and_grad(1e6 * x)
    assert all(part.isfinite().all() for part in far)


def test_the_bound_of_mean_fields_is_one() -> None:
    machine = machines(4, 8)
    start = 2 * torch.rand(20, 4, 8, dtype=F64, generator=torch.Generator().manual_seed(0)) - 1
    found = machine.mean_field(start)
    fields = torch.einsum("kij,skj->ski", machine.weights, found.mean) + machine.biases
    torch.testing.assert_close(found.mean, fields.tanh(), atol=1e-6, rtol=0.0)
    assert (found.bound < machine.exact_moments().log_z).all()
    free = BoltzmannMachine(torch.zeros(3, 3, dtype=F64), torch.tensor([0.2, -1.0, 0.5], dtype=F64))
    exact = free.exact_moments()
    torch.testing.assert_close(free.mean_field(torch.zeros(3, dtype=F64)), (exact.mean, exact.log_z))


def test_evidence_agrees_with_the_sum() -> None:
    relaxation = Relaxation.of(machines(3, 4))
    exact = relaxation.moments(relaxation.machine.exact_moments())
    base = torch.distributions.MultivariateNormal(exact.mean, 1.5 * exact.covariance)
    found = importance(base, relaxation, 20_000).per_item
    assert ((found.log_z - exact.log_z).abs() < 4 * found.std_error).all()


def test_misuse_says_what_to_do() -> None:
    machine = machines(3)
    with pytest.raises(ValueError, match="symmetric"):
        BoltzmannMachine(torch.eye(3, dtype=F64).roll(1, 0), machine.biases)
    with pytest.raises(ValueError, match=r"must be \[\*items, n, n\]"):
        BoltzmannMachine(machine.weights, machine.biases[:2])
    with pytest.raises(ValueError, match="at most 30 units"):
        machines(31).exact_moments()
    with pytest.raises(ValueError, match="must be W"):
        Relaxation(machine, torch.eye(3, dtype=F64), torch.zeros(3, dtype=F64))
