"""Jacobians, densities and tangent spaces of manifolds, in every structure."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmcvi.kernels.constrained.manifold import Manifold
from hmcvi.kernels.constrained.replay import ReplayedManifold
from hmcvi.models import Generator
from hmcvi.models.inputs import Normal
from tests.support.manifolds import GENERATORS, OUTPUTS, pair_series, pairs, regression, series, wide
from tests.support.problems import F64

over_generators = pytest.mark.parametrize("name", GENERATORS)
CHAINS = 5


def points(generator: Generator, count: int = CHAINS) -> tuple[Tensor, Manifold]:
    """Inputs, each on a manifold of its own."""
    inputs = generator.sample(count, generator=torch.Generator().manual_seed(1))
    return inputs, Manifold.of(generator, generator.observed(inputs))


def matrix(manifold: Manifold, inputs: Tensor) -> Tensor:
    """J column by column.  [chains, N, M]"""
    form = manifold.linearize(inputs)
    return torch.stack([form.apply(e.expand_as(inputs)) for e in torch.eye(inputs.shape[-1], dtype=F64)], -1)


@over_generators
def test_jacobian_is_that_of_autograd(name: str) -> None:
    generator = GENERATORS[name]
    inputs, manifold = points(generator)
    assert manifold.residual(inputs).abs().max() < 1e-12
    for u, y, row in zip(inputs, manifold.observed, matrix(manifold, inputs), strict=True):
        torch.testing.assert_close(torch.func.jacrev(generator.residual)(u, y), row)


@over_generators
def test_density_is_that_of_the_inputs_by_the_volume_of_the_generator(name: str) -> None:
    """log ρ − ½ log |J Jᵀ| with J = ∂g/∂u, whatever constraint stands for g(u) = y."""
    generator = GENERATORS[name]
    inputs, manifold = points(generator)
    jacobian = torch.func.vmap(torch.func.jacrev(generator.observed))(inputs)
    expected = generator.density.log_prob(inputs) - 0.5 * torch.logdet(jacobian @ jacobian.mT)
    torch.testing.assert_close(manifold.at(inputs).log_prob, expected)


@over_generators
def test_gradient_is_that_of_the_density(name: str) -> None:
    """By central differences."""
    generator = GENERATORS[name]
    inputs, manifold = points(generator)
    shift = 1e-5
    columns = [
        (manifold.at(inputs + shift * e).log_prob - manifold.at(inputs - shift * e).log_prob) / (2 * shift)
        for e in torch.eye(generator.dim, dtype=F64)
    ]
    torch.testing.assert_close(manifold.at(inputs).grad, torch.stack(columns, -1), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (series("autoregressive"), series("dense")),
        (series("conditional"), series("dense")),
        (regression("elementwise"), regression("dense")),
        (regression("autoregressive"), regression("dense")),
        (pairs(), pairs("dense")),
        (pair_series(), pair_series("dense")),
        (wide(), wide("dense")),
        (wide(block=2), wide("dense", block=2)),
    ],
    ids=[
        *("autoregressive", "conditional", "elementwise", "elementwise as autoregressive"),
        *("blocks", "conditional blocks", "wide", "wide blocks"),
    ],
)
def test_every_structure_sees_the_same_manifold(one: Generator, other: Generator) -> None:
    """Same points, same tangent space, same density, and the same force along it."""
    inputs, manifold = points(one)
    twin = Manifold.of(other, manifold.observed)
    assert torch.equal(one.observed(inputs), other.observed(inputs))
    here, there = manifold.at(inputs), twin.at(inputs)
    torch.testing.assert_close(here.log_prob, there.log_prob)
    vector = torch.randn(CHAINS, one.dim, dtype=F64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(here.jacobian.project(vector), there.jacobian.project(vector))
    torch.testing.assert_close(here.jacobian.project(here.grad), there.jacobian.project(there.grad))


@over_generators
def test_one_observation_for_all_or_for_each(name: str) -> None:
    generator = GENERATORS[name]
    inputs, manifold = points(generator)
    shared = Manifold.of(generator, manifold.observed[2])
    each = Manifold.of(generator, manifold.observed[2].expand(CHAINS, -1))
    torch.testing.assert_close(shared.residual(inputs), each.residual(inputs))
    torch.testing.assert_close(shared.at(inputs).grad, each.at(inputs).grad)
    rows = torch.tensor([3, 1])
    torch.testing.assert_close(manifold.select(rows).residual(inputs[rows]), manifold.residual(inputs)[rows])


def test_without_density_or_curvature_there_is_no_force() -> None:
    """No chain has a density and J is constant: there is nothing to differentiate, and no exception."""
    generator = Generator({"z": Normal(1), "n": Normal(2)}, lambda v: v["z"] + v["n"])
    point = Manifold.of(generator, torch.zeros(2, dtype=F64)).at(torch.full((4, 3), torch.nan, dtype=F64))
    assert not point.log_prob.isfinite().any()
    assert torch.equal(point.grad, torch.zeros(4, 3, dtype=F64))


@pytest.mark.parametrize("wrong", ["elementwise", "autoregressive"])
def test_a_structure_that_is_not_there_is_refused(wrong: str) -> None:
    def observe(v: dict[str, Tensor]) -> Tensor:
        return v["z"] + v["n"] + 0.1 * v["n"].flip(-1) ** 2

    generator = Generator({"z": Normal(1), "n": Normal(OUTPUTS)}, observe, structure=wrong)
    inputs, manifold = points(generator, 1)
    with pytest.raises(ValueError, match=f'not {wrong}.*structure="dense"'):
        manifold.select(torch.tensor(0)).check_structure(inputs[0])


def test_a_block_that_reaches_another_is_refused() -> None:
    def observe(v: dict[str, Tensor]) -> Tensor:
        return (v["n"] + 0.1 * v["n"].roll(1, -2) ** 2).flatten(-2)

    generator = Generator({"n": Normal(OUTPUTS, 2)}, observe, structure="elementwise")
    inputs, manifold = points(generator, 1)
    with pytest.raises(ValueError, match="must reach no output but those of its block"):
        manifold.select(torch.tensor(0)).check_structure(inputs[0])


@over_generators
def test_a_structure_that_is_there_is_believed(name: str) -> None:
    inputs, manifold = points(GENERATORS[name])
    manifold.select(torch.tensor(0)).check_structure(inputs[0])


@over_generators
def test_recorded_points_are_the_same(name: str) -> None:
    """At other positions than those that were recorded, and for some of the chains."""
    inputs, manifold = points(GENERATORS[name])
    replayed = ReplayedManifold(manifold.generator, manifold.observed)
    replayed.at(inputs), replayed.linearize(inputs)
    moved = inputs + 0.1
    for found, wanted in (
        (replayed.at(moved), manifold.at(moved)),
        (
            replayed.select(torch.tensor([1])).at(moved[1:2]),
            manifold.select(torch.tensor([1])).at(moved[1:2]),
        ),
    ):
        torch.testing.assert_close(found[:2], wanted[:2], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.jacobian.tensors, wanted.jacobian.tensors, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(replayed.linearize(moved).tensors, manifold.linearize(moved).tensors)


def test_what_branches_on_values_is_computed_as_it_comes() -> None:
    def observe(v: dict[str, Tensor]) -> Tensor:
        scale = 2.0 if (v["z"] > 1).all() else 1.0
        return v["z"] + scale * v["n"]

    generator = Generator({"z": Normal(1), "n": Normal(OUTPUTS)}, observe, structure="elementwise")
    inputs, observed = torch.zeros(CHAINS, OUTPUTS + 1, dtype=F64), torch.zeros(OUTPUTS, dtype=F64)
    replayed, plain = ReplayedManifold(generator, observed), Manifold(generator, observed)
    for position in (inputs, inputs + 2):
        torch.testing.assert_close(replayed.at(position).log_prob, plain.at(position).log_prob)
