"""First positions: their weights are those of importance sampling, and chains take them accordingly."""

from __future__ import annotations

import math

import pytest
import torch

from hmcvi.kernels import ConstrainedHMC
from hmcvi.kernels.fibre import Fibre
from hmcvi.kernels.starts import Candidates, candidates
from hmcvi.models import generalised_lambda
from tests.fibres import LinearNormal
from tests.problems import F64

OBSERVED = torch.tensor([0.5, -0.8, 1.2], dtype=F64)
COUNT = 20_000
SIGMAS = 4.5


def drawn(model: LinearNormal) -> Candidates:
    rng = torch.Generator().manual_seed(0)
    return candidates(Fibre.over(model.generator, OBSERVED), COUNT, 1e-10, 20, rng)


@pytest.mark.parametrize("structure", ["dense", "elementwise", "autoregressive"])
def test_weights_give_the_evidence_and_the_posterior(structure: str) -> None:
    """E[w] (2π)^{−N/2} = p(y), and E[w z]/E[w] = E[z | y], whatever the subspace was."""
    model = LinearNormal(structure)
    found = drawn(model)
    assert (found.error < 1e-10).all()
    weight = found.log_weight.exp() * (2 * math.pi) ** (-len(OBSERVED) / 2)
    covariance = model.matrix @ model.matrix.T + model.scales.square().diag()
    law = torch.distributions.MultivariateNormal(model.shift, covariance)
    assert abs(weight.mean() - law.log_prob(OBSERVED).exp()) < SIGMAS * weight.std() / math.sqrt(COUNT)
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


def test_more_candidates_start_chains_nearer() -> None:
    """Some make an observation an event of many standard deviations; each chain looks for better ones."""
    generator = generalised_lambda(20)
    observed = generator.observed(generator.sample(generator=torch.Generator().manual_seed(1)))
    kernel = ConstrainedHMC(generator, observed, 0.1, 1)
    few, many = (kernel.init(kernel.find_initial(12, num_candidates=k)).log_prob for k in (1, 16))
    assert many.min() > few.min() + 10 and many.median() > few.median()
