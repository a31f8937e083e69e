"""Projection on the manifold: with a known solution it ends early, and never elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmcvi.kernels.constrained.manifold import Manifold
from hmcvi.kernels.constrained.projection import Projector
from tests.support.manifolds import GENERATORS
from tests.support.problems import F64

CHAINS, TOLERANCE = 20, 1e-10


def beside(name: str) -> tuple[Manifold, Tensor, Tensor]:
    """Points on their manifolds, and others beside them along the rows of J."""
    generator, rng = GENERATORS[name], torch.Generator().manual_seed(3)
    inputs = generator.sample(CHAINS, generator=rng)
    manifold = Manifold.of(generator, generator.observed(inputs))
    shift = torch.randn(manifold.observed.shape, dtype=F64, generator=rng)
    return manifold, inputs, inputs + 0.02 * manifold.linearize(inputs).lift(shift)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_known_solution_saves_residuals_alone(name: str) -> None:
    manifold, inputs, start = beside(name)
    jacobian, project, active = manifold.linearize(inputs), Projector(TOLERANCE, 50), torch.arange(CHAINS) > 2
    plain = project(manifold, jacobian, start, active)
    early = project(manifold, jacobian, start, active, inputs)
    assert torch.equal(early.found, plain.found) and early.found[3:].all() and not early.found[:3].any()
    assert (early.position - plain.position).abs().max() < 2 * TOLERANCE**0.5
    assert (early.num_residuals <= plain.num_residuals).all()
    elsewhere = project(manifold, jacobian, start, active, inputs + 1)
    torch.testing.assert_close(elsewhere.position, plain.position, rtol=0, atol=0)
    assert torch.equal(elsewhere.num_residuals, plain.num_residuals)
