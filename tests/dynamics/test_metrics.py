"""Metrics against the dense matrices they stand for, and the masses that make them."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal

from hmcvi import Context
from hmcvi.kernels import GlobalMass, IdentityMass, LowRankMass, NetworkMass
from tests.contracts.members import CONTEXT_DIM, DIM, MASSES, MetricExample, metrics
from tests.support.problems import F64, perturb
from tests.support.statistics import assert_mean

over_metrics = pytest.mark.parametrize(
    "example", [*metrics(), *metrics(5), *metrics(2, 1, 5)], ids=lambda e: type(e.metric).__name__
)
over_masses = pytest.mark.parametrize("name", MASSES)


def vectors(example: MetricExample) -> torch.Tensor:
    """A few samples in front of the batch of the metric."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, *example.matrix.shape[:-1], generator=generator, dtype=F64)


@over_metrics
def test_coloring_and_whitening_undo_each_other(example: MetricExample) -> None:
    v = vectors(example)
    torch.testing.assert_close(example.metric.color(example.metric.whiten(v)), v)
    torch.testing.assert_close(example.metric.whiten(example.metric.color(v)), v)


@over_metrics
def test_the_factor_squares_to_the_matrix(example: MetricExample) -> None:
    """L Lᵀ = M, L read off by coloring the unit vectors."""
    identity = torch.eye(example.matrix.shape[-1], dtype=F64)
    units = identity.view(len(identity), *(1,) * (example.matrix.ndim - 2), -1)
    root = example.metric.color(units.expand(-1, *example.matrix.shape[:-1])).movedim(0, -1)
    torch.testing.assert_close(root @ root.mT, example.matrix)


@over_metrics
def test_transposed_whitening_is_the_transpose(example: MetricExample) -> None:
    """⟨w, L⁻¹v⟩ = ⟨L⁻ᵀw, v⟩"""
    v = vectors(example)
    w = v.flip(0)
    left = (w * example.metric.whiten(v)).sum(-1)
    torch.testing.assert_close(left, (example.metric.whiten_transposed(w) * v).sum(-1))


@over_metrics
def test_velocity_and_energy(example: MetricExample) -> None:
    v = vectors(example)
    velocity = torch.linalg.solve(example.matrix, v[..., None])[..., 0]
    torch.testing.assert_close(example.metric.velocity(v), velocity)
    torch.testing.assert_close(example.metric.energy(v), 0.5 * (v * velocity).sum(-1))


@over_metrics
def test_log_prob_is_that_of_the_normal_distribution(example: MetricExample) -> None:
    v = vectors(example)
    distribution = MultivariateNormal(v.new_zeros(v.shape[-1]), example.matrix)
    torch.testing.assert_close(example.metric.log_prob(v), distribution.log_prob(v))
    torch.testing.assert_close(
        example.metric.log_det().double().expand(example.matrix.shape[:-2]),
        0.5 * torch.linalg.slogdet(example.matrix)[1],
    )


@over_metrics
def test_draws_have_the_covariance(example: MetricExample) -> None:
    like = torch.empty(20_000, *example.matrix.shape[:-1], dtype=F64)
    v = example.metric.sample(like, torch.Generator().manual_seed(0))
    assert_mean(v, 0.0)
    assert_mean(v[..., :, None] * v[..., None, :], example.matrix)


@over_metrics
def test_a_fixed_metric_is_its_own_mass(example: MetricExample) -> None:
    assert example.metric(Context(None)) is example.metric


@over_masses
def test_masses_start_at_the_identity(name: str) -> None:
    torch.manual_seed(0)
    metric = MASSES[name]().double()(Context(torch.randn(5, CONTEXT_DIM, dtype=F64)))
    v = torch.randn(5, DIM, dtype=F64)
    # the low-rank model starts near the identity, where V has a gradient
    torch.testing.assert_close(metric.color(v), v, rtol=0, atol=1e-3 if name == "low-rank" else 0)


@over_masses
def test_only_a_network_looks_at_the_data(name: str) -> None:
    torch.manual_seed(0)
    mass, v = perturb(MASSES[name]()), torch.randn(5, DIM, dtype=F64)
    here, there = (mass(Context(torch.randn(5, CONTEXT_DIM, dtype=F64))).energy(v) for _ in range(2))
    assert torch.equal(here, there) == (name != "nn")


def test_identity_and_untrained_global_mass_agree_exactly() -> None:
    v = torch.randn(5, DIM, dtype=F64)
    identity, learned = (mass(Context(None)) for mass in (IdentityMass(), GlobalMass(DIM).double()))
    for name in ("color", "whiten", "whiten_transposed", "velocity", "energy", "log_prob"):
        assert torch.equal(getattr(identity, name)(v), getattr(learned, name)(v)), name


def test_bad_masses_are_refused() -> None:
    with pytest.raises(ValueError, match="got 0"):
        NetworkMass(DIM, 0)
    with pytest.raises(ValueError, match="got 3"):
        LowRankMass(DIM, 3)
