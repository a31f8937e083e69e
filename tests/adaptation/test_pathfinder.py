"""Pathfinder: H is the BFGS matrix of its pairs, normals are what they say, climbs survive bad starts."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

import hmcvi
from hmcvi import Density, Phase
from hmcvi.adaptation.pathfinder import HISTORY, Pairs, climb
from hmcvi.evidence import importance, pathfinder
from hmcvi.kernels import HMC
from tests.support.problems import F64

MEAN = torch.tensor([300.0, -2.0, 0.5], dtype=F64)
ROOT = torch.tensor([[20.0, 0.0, 0.0], [1.5, 0.3, 0.0], [0.0, -0.02, 0.01]], dtype=F64)


def normal() -> Density:
    """Correlated, far away and in units from 0.01 to 20, with log Z = 1.5."""
    distribution = torch.distributions.MultivariateNormal(MEAN, scale_tril=ROOT)
    return Density(lambda z: distribution.log_prob(z) + 1.5, dim=3)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def walk(count: int, dim: int = 4) -> list[Phase]:
    """Points and gradients of two paths over a density whose curvature changes."""
    generator = seeded()
    density = Density(lambda z: -(z.square() * torch.arange(1, dim + 1)).sum(-1) - z[..., 0] ** 4)
    points = [torch.randn(2, dim, dtype=F64, generator=generator) for _ in range(count)]
    return [Phase(point).evaluate(density) for point in points]


def matrix(pairs: Pairs, dim: int = 4) -> Tensor:
    """H [2, d, d], column by column."""
    return torch.stack([pairs.ascent(row.expand(2, dim)) for row in torch.eye(dim, dtype=F64)], -1)


def test_the_matrix_is_that_of_bfgs() -> None:
    points = walk(HISTORY + 1)
    pairs = Pairs(points[0].position)
    for old, new in pairwise(points):
        pairs.add(old, new)
    wanted, identity = torch.diag_embed(pairs._alpha), torch.eye(4, dtype=F64)
    for old, new in pairwise(points):
        s, y = new.position - old.position, old.grad - new.grad
        rho = 1 / (s * y).sum(-1)[:, None, None]
        left = identity - rho * s[..., :, None] * y[..., None, :]
        wanted = left @ wanted @ left.mT + rho * s[..., :, None] * s[..., None, :]
    torch.testing.assert_close(matrix(pairs), wanted)


def test_pairs_without_curvature_change_nothing() -> None:
    points = walk(3)
    pairs = Pairs(points[0].position)
    pairs.add(points[0], points[1])
    before = matrix(pairs)
    pairs.add(points[1], points[1])
    pairs.add(points[1], points[2]._replace(grad=points[1].grad + points[2].position - points[1].position))
    torch.testing.assert_close(matrix(pairs), before)
    pairs.forget(torch.tensor([True, False]))
    torch.testing.assert_close(matrix(pairs)[0], torch.eye(4, dtype=F64))
    torch.testing.assert_close(matrix(pairs)[1], before[1])


@pytest.mark.parametrize("dim", [4, 20])
def test_normals_have_the_matrix_as_covariance(dim: int) -> None:
    points = walk(5, dim)
    pairs = Pairs(points[0].position)
    for old, new in pairwise(points):
        pairs.add(old, new)
    normals = pairs.normals(points[-1])
    factor = normals.factor()
    torch.testing.assert_close(factor @ factor.mT, matrix(pairs, dim))
    torch.testing.assert_close(normals.mean, points[-1].position + pairs.ascent(points[-1].grad))
    noise = torch.randn(3, 2, dim, dtype=F64, generator=seeded())
    torch.testing.assert_close(normals.at(noise), normals.mean + (factor @ noise[..., None])[..., 0])
    wanted = torch.distributions.MultivariateNormal(normals.mean, factor @ factor.mT)
    torch.testing.assert_close(normals.log_prob_at(noise), wanted.log_prob(normals.at(noise)))


def test_a_normal_distribution_is_found() -> None:
    """From anywhere, to within a nat; H of a quadratic function is exact only by exact line searches."""
    fits = pathfinder(normal(), 2 * torch.randn(8, 3, dtype=F64, generator=seeded()))
    assert fits.batch_shape == (8,)
    assert (fits.log_zeta <= 1.5 + 1e-9).all() and (fits.log_zeta > 0.5).all()
    assert (((fits.mean - MEAN) / ROOT.norm(dim=-1)).abs() < 0.5).all()
    evidence = importance(fits[0], normal(), 4000)
    assert abs(evidence.log_z - 1.5) < 5 * evidence.std_error


def test_overflow_around_the_start_is_left() -> None:
    """Curvature far away is no reason to stop."""
    density = Density(lambda z: -(5 * z).exp().sum(-1) + 10 * z.sum(-1), dim=2)
    start = torch.tensor([[30.0, 40.0], [-3.0, 2.0]], dtype=F64)
    paths = climb(density, start, seeded())
    torch.testing.assert_close(paths.end, torch.full_like(start, 0.2 * torch.log(torch.tensor(2.0))))
    assert (paths.elbo > -1e3).all()


def test_paths_climb_alone_as_in_company() -> None:
    start = torch.randn(3, 3, dtype=F64, generator=seeded())
    together = climb(normal(), start, seeded()).end
    alone = torch.cat([climb(normal(), row[None], seeded()).end for row in start])
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)


def test_chains_start_at_draws_of_their_paths() -> None:
    kernel = HMC(normal(), step_size=0.1)
    draws = hmcvi.sample(kernel, "pathfinder", 50, 150, num_chains=8, progress=False, check=False)
    start = (draws.start.position - MEAN.to(draws.start.position)) / ROOT.norm(dim=-1)
    assert start.abs().max() < 6 and start.std(0).min() > 0.3
    again = hmcvi.sample(kernel, "pathfinder", 50, 150, num_chains=8, progress=False, check=False)
    assert torch.equal(draws.position, again.position)


def test_mistakes_are_named() -> None:
    kernel = HMC(normal(), step_size=0.1)
    with pytest.raises(ValueError, match=r"init.*pathfinder"):
        hmcvi.sample(kernel, "pathfindr", progress=False)
    with pytest.raises(ValueError, match="start where log_prob"):
        pathfinder(Density(lambda z: z.sum(-1) * torch.nan), torch.zeros(2))
