"""Non-centring that warm-up learns: exact on funnels, none where curvature is the same everywhere."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hmcvi import Density, Draws, SamplingWarning, Warmup, sample
from hmcvi.adaptation import noncentring
from hmcvi.adaptation.noncentring import NoncentringSearch, distance_from_normal, learn_noncentring
from hmcvi.dynamics.noncentring import Noncentring
from hmcvi.kernels import HMC
from tests.support.problems import F64

SCALES = torch.tensor([1.0, 30.0, 0.01], dtype=F64)


def funnel(z: Tensor) -> Tensor:
    """v ~ N(1, 3²) and x ~ N(2 + v, e^v s²)."""
    v, x = z[..., 0], (z[..., 1:] - 2 - z[..., :1]) / SCALES
    return -0.5 * (((v - 1) / 3).square() + x.square().sum(-1) * (-v).exp() + 3 * v)


def test_a_funnel_becomes_a_normal_density_wherever_the_draws_are() -> None:
    density = Density(funnel)
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(600, 4, dtype=F64, generator=generator) + 1  # not of the funnel
    found = learn_noncentring(draws, density.value_and_grad(draws)[1].detach())
    assert found is not None and found.parents.tolist() == [0]
    slopes = torch.tensor([0.0, 0.5, 0.5, 0.5], dtype=F64)
    torch.testing.assert_close(found.by_scale[:, 0], slopes, atol=1e-4, rtol=0)
    places = 3 * torch.randn(50, 4, dtype=F64, generator=generator)
    reference = found.to_reference(places)
    scores = found.pull_back(places, density.value_and_grad(places)[1].detach())
    torch.testing.assert_close(scores[:, 1:], -reference[:, 1:], atol=1e-3, rtol=1e-3)


def test_a_hierarchy_with_data_becomes_a_normal_density() -> None:
    """θ_i ~ N(μ, τ²), y_i ~ N(θ_i, σ_i²): the data bound the scales, and are where θ is for large τ."""
    data, noise = (
        torch.tensor([28.0, 8.0, -3.0, 7.0], dtype=F64),
        torch.tensor([15.0, 10.0, 4.0, 2.0], dtype=F64),
    )

    def log_prob(z: Tensor) -> Tensor:
        mu, log_tau, theta = z[..., :1], z[..., 1:2], z[..., 2:]
        prior = -0.5 * ((theta - mu) * (-log_tau).exp()).square() - log_tau
        rest = -0.5 * ((mu / 5).square() + (log_tau - 1).square()).sum(-1)
        return (prior - 0.5 * ((theta - data) / noise).square()).sum(-1) + rest

    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(2000, 6, dtype=F64, generator=generator)
    draws[:, :2] = draws[:, :2] * torch.tensor([5.0, 1.0]) + torch.tensor([0.0, 1.0])
    draws[:, 2:] = draws[:, :1] + draws[:, 1:2].exp() * draws[:, 2:]  # of the prior
    found = learn_noncentring(draws, Density(log_prob).value_and_grad(draws)[1].detach())
    assert found is not None and found.parents.tolist() == [1, 0]
    torch.testing.assert_close(found.by_scale[2:, 0], torch.ones(4, dtype=F64), atol=1e-3, rtol=0)
    torch.testing.assert_close(found.by_location[2:, 1], torch.ones(4, dtype=F64), atol=1e-3, rtol=0)
    torch.testing.assert_close(found.bound[2:].exp(), noise, rtol=1e-2, atol=0)
    torch.testing.assert_close(found.anchor[2:], data, atol=0.1, rtol=1e-2)


@pytest.mark.parametrize("seed", range(4))
def test_means_are_not_mistaken_for_the_members_of_their_groups(seed: int) -> None:
    """In the neck each θ_i is near μ, but the others are normal about μ alone."""
    data, noise = torch.linspace(-3, 28, 8, dtype=F64), torch.linspace(9, 18, 8, dtype=F64)

    def log_prob(z: Tensor) -> Tensor:
        theta, mu, log_tau = z[..., :8], z[..., 8:9], z[..., 9:]
        prior = -0.5 * ((theta - mu) * (-log_tau).exp()).square() - log_tau
        rest = -0.5 * ((mu / 5).square() + (log_tau - 1).square()).sum(-1)
        return (prior - 0.5 * ((theta - data) / noise).square()).sum(-1) + rest

    generator = torch.Generator().manual_seed(seed)
    mu, log_tau = (
        centre + scale * torch.randn(2000, 1, dtype=F64, generator=generator)
        for centre, scale in ((4, 4.0), (-1, 1.5))
    )
    theta = mu + log_tau.exp() * torch.randn(2000, 8, dtype=F64, generator=generator)
    draws = torch.cat([theta, mu, log_tau], 1)
    found = learn_noncentring(draws, Density(log_prob).value_and_grad(draws)[1].detach())
    assert found is not None and found.parents.tolist() == [9, 8]


def test_a_normal_density_needs_no_coordinates() -> None:
    root = torch.randn(6, 6, dtype=F64, generator=torch.Generator().manual_seed(1))
    draws = torch.randn(600, 6, dtype=F64, generator=torch.Generator().manual_seed(2)) @ root.mT
    assert learn_noncentring(draws, -draws @ torch.linalg.inv(root @ root.mT)) is None
    assert learn_noncentring(draws[:100], -draws[:100]) is None


def test_the_distance_from_the_nearest_normal_density() -> None:
    """None of a normal one, whatever its shape; of a mixture of scales s, known: C = E s², G = E s⁻²."""
    generator = torch.Generator().manual_seed(0)
    noise, root = (torch.randn(n, 4, dtype=F64, generator=generator) for n in (100_000, 4))
    precision = torch.linalg.inv(root @ root.mT)
    normal = noise @ root.mT
    assert abs(distance_from_normal(normal, -normal @ precision)) < 0.05
    small = torch.arange(len(noise))[:, None] % 2 == 0
    scale = torch.where(small, 0.5, 2.0)
    mixed, expected = scale * noise, 2 * 4 * ((0.5**2 + 2.0**2) / 2 - 1)  # Σ = (C/G)^½ = 1
    assert distance_from_normal(mixed, -noise / scale) == pytest.approx(expected, rel=0.05)


def test_coordinates_that_leave_a_density_far_from_normal_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are found for a funnel are; without their slopes they would not do."""
    generator = torch.Generator().manual_seed(0)
    v = 1 + 3 * torch.randn(2000, 1, dtype=F64, generator=generator)
    noise = SCALES * torch.randn(2000, 3, dtype=F64, generator=generator)
    draws = torch.cat([v, 2 + v + (v / 2).exp() * noise], 1)
    search = NoncentringSearch()
    search.add(draws, Density(funnel).value_and_grad(draws)[1].detach())
    assert search.learn(True, draws) is not None

    def without_slopes(position: Tensor, grad: Tensor) -> Noncentring:
        found = learn_noncentring(position, grad)
        assert found is not None
        return dataclasses.replace(found, by_scale=0.0 * found.by_scale)

    monkeypatch.setattr(noncentring, "learn_noncentring", without_slopes)
    assert search.learn(True, draws) is None


@pytest.mark.slow
def test_neals_funnel_converges_with_the_defaults(tmp_path: Path) -> None:
    """v ~ N(0, 3²) and nine x ~ N(0, e^v), from uniform(−2, 2); its run goes on from a file."""

    def log_prob(z: Tensor) -> Tensor:
        v, x = z[..., 0], z[..., 1:]
        return -0.5 * (v.square() / 9 + x.square().sum(-1) * (-v).exp() + 9 * v)

    kernel = HMC(Density(log_prob, dim=10), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SamplingWarning)
        draws = sample(kernel, num_chains=16, num_samples=300, num_warmup=400, progress=False)
    assert draws.kernel is not None and draws.kernel.coordinates is not None
    v = draws.position[..., 0]
    assert v.mean().abs() < 0.3 and 2.8 < v.std() < 3.2
    draws.save(tmp_path / "draws.pt")
    loaded = Draws.load(tmp_path / "draws.pt", kernel).resume(5, progress=False)
    assert torch.equal(loaded.position, draws.resume(5, progress=False).position)
    fixed = sample(
        kernel, None, 10, 120, progress=False, check=False, warmup=Warmup(noncentring=False)
    )  # warmed up as before
    assert fixed.kernel is not None and fixed.kernel.coordinates is None
