"""Initial states: their weights are those of importance sampling, and chains take them accordingly."""

from __future__ import annotations

import math

import pytest
import torch

from experiments.models import lotka_volterra
from experiments.models.lotka_volterra import TRUTH
from hmcvi.kernels import ConstrainedHMC
from hmcvi.kernels.constrained.initial import Candidates, candidates, relax
from hmcvi.kernels.constrained.manifold import Manifold
from hmcvi.kernels.constrained.projection import Projector
from tests.support.manifolds import LinearNormal, regression
from tests.support.problems import F64

OBSERVED = torch.tensor([0.5, -0.8, 1.2], dtype=F64)
COUNT = 20_000
SIGMAS = 4.5
NEVER = torch.full((5,), math.inf, dtype=F64)
PROJECT = Projector(1e-10, 50)


def drawn(model: LinearNormal) -> Candidates:
    rng = torch.Generator().manual_seed(0)
    return candidates(Manifold.of(model.generator, OBSERVED), COUNT, 1e-10, 20, rng)


@pytest.mark.parametrize("structure", ["dense", "elementwise", "autoregressive"])
def test_weights_give_the_evidence_and_the_posterior(structure: str) -> None:
    """E[w] (2π)^{−N/2} = p(y), and E[w z]/E[w] = E[z | y], whatever the subspace was."""
    model = LinearNormal(structure)
    found = drawn(model)
    assert (found.error < 1e-10).all()
    weight = found.log_weight.exp() * (2 * math.pi) ** (-len(OBSERVED) / 2)
    covariance = model.matrix @ model.matrix.T + model.scales.square().diag()
    marginal = torch.distributions.MultivariateNormal(model.shift, covariance)
    assert abs(weight.mean() - marginal.log_prob(OBSERVED).exp()) < SIGMAS * weight.std() / math.sqrt(COUNT)
    exact = model.gain @ (OBSERVED - model.shift)
    share = weight / weight.sum()
    offset = found.position[:, :2] - exact
    error = (share.square()[:, None] * offset.square()).sum(0).sqrt()
    assert ((share[:, None] * offset).sum(0).abs() < SIGMAS * error).all()


def test_candidates_are_taken_as_often_as_they_weigh() -> None:
    share = torch.tensor([0.1, 0.6, 0.0, 0.3], dtype=F64)
    found = Candidates(torch.zeros(4 * COUNT, 5), share.log().repeat(COUNT), torch.zeros(4 * COUNT))
    taken = found.keys(torch.Generator().manual_seed(0)).view(COUNT, 4).argmax(-1)
    rate = torch.bincount(taken, minlength=4) / COUNT
    assert rate[2] == 0
    assert ((rate - share).abs() <= SIGMAS * (share * (1 - share) / COUNT).sqrt()).all()


def test_chains_start_where_inputs_are_likely() -> None:
    """Most rates make this path an event of hundreds of standard deviations; no chain starts from those."""
    generator, rng = lotka_volterra(6), torch.Generator().manual_seed(1)
    rates = torch.tensor(TRUTH, dtype=F64).log() + 2
    path = generator.observed(torch.cat([rates, torch.randn(12, dtype=F64, generator=rng)]))
    raw = candidates(Manifold.of(generator, path), 50, 1e-10, 50, rng).position
    assert generator.density.log_prob(raw).median() < -1e4
    start = ConstrainedHMC(generator, path, 0.1, 1).find_initial(20)
    typical = generator.density.log_prob(generator.sample(200, generator=rng))
    # the least of these rates is 4.9 standard deviations from where it is likely
    assert generator.density.log_prob(start).min() > typical.median() - 4.9**2 / 2 - 5


@pytest.mark.parametrize("structure", ["dense", "elementwise", "autoregressive"])
def test_relaxing_ends_at_the_least_inputs(structure: str) -> None:
    """With no level to stop at: of a linear generator, J⁺ (y − g(0))."""
    model = LinearNormal(structure)
    found = relax(Manifold.of(model.generator, OBSERVED), drawn(model).position[:5], NEVER, PROJECT, 3)
    jacobian = torch.cat([model.matrix, model.scales.diag()], -1)
    least = torch.linalg.pinv(jacobian) @ (OBSERVED - model.shift)
    torch.testing.assert_close(found, least.expand(5, -1), rtol=0, atol=1e-8)


def test_relaxing_stops_where_inputs_are_likely_enough() -> None:
    """Chains that are there stay where they were, the others climb to their level along the manifold."""
    generator = regression()
    inputs = generator.sample(5, generator=torch.Generator().manual_seed(0))
    manifold = Manifold.of(generator, generator.observed(inputs))
    best = generator.density.log_prob(relax(manifold, inputs, NEVER, PROJECT, 50))
    before = generator.density.log_prob(inputs)
    level = torch.stack([before[0] - 1, *(0.5 * (before + best))[1:]])
    found = relax(manifold, inputs, level, PROJECT, 50)
    after = generator.density.log_prob(found)
    assert torch.equal(found[0], inputs[0])
    assert (after >= level).all() and (after < best)[1:].all()
    assert manifold.residual(found).abs().max() < PROJECT.tolerance
