"""Jacobians of constraints and their linear algebra, against dense matrices."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hmcvi.kernels.constrained.jacobian import Blocks, Dense, Elementwise, Linearization, Triangular
from hmcvi.kernels.constrained.wide import WideBlocks, WideElementwise, blocks_of
from tests.support.problems import F64

CHAINS, OUTPUTS, GLOBAL, BLOCK = 4, 6, 2, 2
STRUCTURES = {
    "dense": Dense,
    "elementwise": Elementwise,
    "blocks": Blocks,
    "triangular": Triangular,
    "wide elementwise": WideElementwise,  # right for any number of columns, cheap for many
    "wide blocks": WideBlocks,
}
over_structures = pytest.mark.parametrize("structure", STRUCTURES)
over_batches = pytest.mark.parametrize("batch", [(), (CHAINS,), (2, CHAINS)], ids=str)


def test_blocks_on_the_diagonal() -> None:
    matrix = torch.randn(CHAINS, OUTPUTS, OUTPUTS)
    parts = [matrix[..., i : i + BLOCK, i : i + BLOCK] for i in range(0, OUTPUTS, BLOCK)]
    torch.testing.assert_close(blocks_of(matrix, BLOCK), torch.stack(parts, -3))


def form_of(structure: str, columns: Tensor, block: Tensor) -> Linearization:
    """The form made of C and what the structure leaves of the last N columns."""
    if structure == "dense":
        return Dense(torch.cat([columns, block], -1))
    if structure == "triangular":
        return Triangular(columns, block.tril())
    is_elementwise = structure.endswith("elementwise")
    own = block.diagonal(dim1=-2, dim2=-1) if is_elementwise else blocks_of(block, BLOCK)
    return STRUCTURES[structure](columns, own)


def problem(
    structure: str, batch: tuple[int, ...] = (CHAINS,), seed: int = 0, num_global: int = GLOBAL
) -> tuple[Linearization, Tensor]:
    """A form and the matrix it stands for, its diagonal of both signs.  [*batch, N, M]"""
    rng = torch.Generator().manual_seed(seed)
    columns = torch.randn(*batch, OUTPUTS, num_global, dtype=F64, generator=rng)
    block = torch.randn(*batch, OUTPUTS, OUTPUTS, dtype=F64, generator=rng)
    block = block + 2 * block.diagonal(dim1=-2, dim2=-1).sign().diag_embed()
    mask = {
        "dense": torch.ones(OUTPUTS, OUTPUTS),
        "elementwise": torch.eye(OUTPUTS),
        "blocks": torch.block_diag(*[torch.ones(BLOCK, BLOCK)] * (OUTPUTS // BLOCK)),
        "triangular": torch.ones(OUTPUTS, OUTPUTS).tril(),
    }[structure.removeprefix("wide ")]
    return form_of(structure, columns, block), torch.cat([columns, mask * block], -1)


def vectors(*shape: int, seed: int = 9) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]


@over_structures
@over_batches
@pytest.mark.parametrize("num_global", [0, GLOBAL])
def test_is_the_matrix_it_stands_for(structure: str, batch: tuple[int, ...], num_global: int) -> None:
    form, jacobian = problem(structure, batch, num_global=num_global)
    inputs, outputs = vectors(*batch, OUTPUTS + num_global), vectors(*batch, OUTPUTS)
    gram = jacobian @ jacobian.mT
    torch.testing.assert_close(form.apply(inputs), times(jacobian, inputs))
    torch.testing.assert_close(form.transpose(outputs), times(jacobian.mT, outputs))
    torch.testing.assert_close(form.solve(outputs), torch.linalg.solve(gram, outputs))
    torch.testing.assert_close(form.log_volume(), 0.5 * torch.logdet(gram))


@over_structures
@over_batches
def test_gradient_of_the_volume_in_closed_form(structure: str, batch: tuple[int, ...]) -> None:
    """(J Jᵀ)⁻¹ J against autograd; a triangle has no other entries than its own."""
    form, _ = problem(structure, batch)
    gradient = form.volume_gradient()
    parts = [part.clone().requires_grad_() for part in form.tensors[: len(gradient)]]
    expected = torch.autograd.grad(type(form)(*parts).log_volume().sum(), parts)
    if structure == "triangular":
        gradient = gradient[0], gradient[1].tril()
    torch.testing.assert_close(gradient, expected)


@over_structures
@over_batches
def test_projection_is_orthogonal_and_on_the_tangent_space(structure: str, batch: tuple[int, ...]) -> None:
    form, jacobian = problem(structure, batch)
    vector = vectors(*batch, OUTPUTS + GLOBAL)
    along = form.project(vector)
    projector = torch.eye(OUTPUTS + GLOBAL, dtype=F64) - torch.linalg.pinv(jacobian) @ jacobian
    torch.testing.assert_close(along, times(projector, vector))
    torch.testing.assert_close(form.project(along), along)
    torch.testing.assert_close(times(jacobian, along), torch.zeros(*batch, OUTPUTS, dtype=F64))


@over_structures
@over_batches
def test_solves_between_two_points(structure: str, batch: tuple[int, ...]) -> None:
    """(J' Jᵀ)⁻¹ b, J of the form that is asked and J' of the other: their order matters."""
    (here, jacobian), (there, other) = problem(structure, batch), problem(structure, batch, seed=5)
    outputs = vectors(*batch, OUTPUTS)
    expected = torch.linalg.solve(other @ jacobian.mT, outputs)
    torch.testing.assert_close(here.solve_between(there, outputs), expected)
    assert not torch.allclose(torch.linalg.solve(jacobian @ other.mT, outputs), expected)
    torch.testing.assert_close(here.solve_between(here, outputs), here.solve(outputs))


@over_structures
@over_batches
def test_steps_within_a_subspace(structure: str, batch: tuple[int, ...]) -> None:
    """The step changes c by what was asked, within the span: of the last inputs if there is structure."""
    form, jacobian = problem(structure, batch)
    subspace, change = vectors(*batch, OUTPUTS + GLOBAL, OUTPUTS), vectors(*batch, OUTPUTS, seed=4)
    if structure != "dense":
        subspace = torch.eye(OUTPUTS + GLOBAL, dtype=F64)[:, GLOBAL:].expand(*batch, -1, -1)
    step = form.step_within(subspace, change)
    torch.testing.assert_close(times(jacobian, step), change)
    outside = step - times(subspace @ torch.linalg.pinv(subspace), step)
    torch.testing.assert_close(outside, torch.zeros_like(outside))


@over_structures
def test_some_of_the_chains(structure: str) -> None:
    form, _ = problem(structure)
    inputs, outputs = vectors(CHAINS, OUTPUTS + GLOBAL), vectors(CHAINS, OUTPUTS)
    for rows in (torch.tensor([2, 0]), torch.tensor([False, True, False, True])):
        part = form.select(rows)
        torch.testing.assert_close(part.project(inputs[rows]), form.project(inputs)[rows])
        torch.testing.assert_close(part.solve(outputs[rows]), form.solve(outputs)[rows])
        torch.testing.assert_close(part.log_volume(), form.log_volume()[rows])
    assert form.log_volume().shape == (CHAINS,)


@over_structures
def test_without_history(structure: str) -> None:
    _, jacobian = problem(structure)
    columns, block = jacobian.requires_grad_().split([GLOBAL, OUTPUTS], -1)
    form = form_of(structure, columns, block)
    assert form.log_volume().requires_grad
    assert not form.detach().log_volume().requires_grad
    assert not form.detach().project(vectors(CHAINS, OUTPUTS + GLOBAL)).requires_grad


@over_structures
def test_gradient_of_the_volume(structure: str) -> None:
    form, jacobian = problem(structure)

    def log_volume(columns: Tensor, block: Tensor) -> Tensor:
        return form_of(structure, columns, block).log_volume()

    parts = [part.detach().clone().requires_grad_() for part in jacobian.split([GLOBAL, OUTPUTS], -1)]
    torch.testing.assert_close(log_volume(*parts), form.log_volume())
    assert torch.autograd.gradcheck(log_volume, parts)


@over_structures
def test_without_full_rank_nothing_is_known(structure: str) -> None:
    """NaN for the chain whose J has lost its rank, no exception, and the others as they were."""
    form, jacobian = problem(structure)
    broken = jacobian.clone()
    broken[1, 0] = 0.0
    columns, block = broken.split([GLOBAL, OUTPUTS], -1)
    hurt, well = form_of(structure, columns, block), [0, 2, 3]
    inputs, outputs = vectors(CHAINS, OUTPUTS + GLOBAL), vectors(CHAINS, OUTPUTS)
    assert math.isnan(hurt.log_volume()[1])
    for damaged, sound in (
        (hurt.project(inputs), form.project(inputs)),
        (hurt.solve(outputs), form.solve(outputs)),
    ):
        assert damaged[1].isnan().all()
        torch.testing.assert_close(damaged[well], sound[well])
    step = hurt.step_within(vectors(CHAINS, OUTPUTS + GLOBAL, OUTPUTS), outputs)
    assert not step[1].isfinite().all() and step[well].isfinite().all()
    between = form.solve_between(hurt, outputs)
    assert not between[1].isfinite().all() and between[well].isfinite().all()


@over_structures
@over_batches
def test_volume_within_a_subspace(structure: str, batch: tuple[int, ...]) -> None:
    """log |det J P|, with structure P the last inputs."""
    form, matrix = problem(structure, batch)
    subspace = vectors(*batch, GLOBAL + OUTPUTS, OUTPUTS)
    if structure != "dense":
        subspace = torch.eye(GLOBAL + OUTPUTS, dtype=F64)[:, GLOBAL:]
    torch.testing.assert_close(form.log_volume_within(subspace), torch.linalg.slogdet(matrix @ subspace)[1])
