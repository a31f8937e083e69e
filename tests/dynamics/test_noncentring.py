"""Coordinates: their inverse, their Jacobian and the way gradients go through them, against autograd."""

from __future__ import annotations

import pytest
import torch

from hmcvi import Density, Phase
from hmcvi.dynamics.noncentring import NoncentredDensity
from hmcvi.kernels import HMC
from tests.contracts.kernels import noncentring
from tests.support.problems import F64

BENT = Density(lambda z: -0.5 * (z - z.roll(1, -1).square()).square().sum(-1) - z.cosh().sum(-1))


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_coordinates_and_their_density(dim: int) -> None:
    coordinates = noncentring(dim, F64)
    place = torch.randn(4, dim, dtype=F64, generator=torch.Generator().manual_seed(dim))
    reference = coordinates.to_reference(place)
    torch.testing.assert_close(coordinates.from_reference(reference), place)
    jacobian = torch.stack(
        [torch.autograd.functional.jacobian(coordinates.from_reference, row) for row in reference]
    )
    torch.testing.assert_close(coordinates.log_det(place), torch.linalg.slogdet(jacobian).logabsdet)
    density = NoncentredDensity(BENT, coordinates)
    by_autograd = Density(
        lambda y: (
            BENT._log_prob(coordinates.from_reference(y)) + coordinates.log_det(coordinates.from_reference(y))
        )
    )
    for found, true in zip(
        density.value_and_grad(reference), by_autograd.value_and_grad(reference), strict=True
    ):
        torch.testing.assert_close(found, true.detach())


def test_states_go_there_and_back_and_rejected_ones_stay() -> None:
    density = NoncentredDensity(BENT, noncentring(3, F64))
    start, moved = (Phase(torch.full((2, 3), value, dtype=F64)).evaluate(BENT) for value in (0.3, -0.8))
    there = density.to_reference(moved)
    states = Phase(*(None if part is None else torch.stack([part, part]) for part in there))
    back = density.from_reference(states, start, torch.tensor([[False, True], [False, False]]))
    for index in (0, 2, 3):
        expected = torch.stack([start[index][0], moved[index][1]])
        torch.testing.assert_close(back[index], expected.expand_as(back[index]))
        assert torch.equal(back[index][:, 0], start[index][:1].expand_as(back[index][:, 0]))


@pytest.mark.slow
def test_compiled_transitions_are_the_same() -> None:
    kernel = HMC(BENT, 0.3, 4, jitter=0.5, coordinates=noncentring(3, F64), compile=False)
    start = kernel.init(torch.full((4, 3), 0.3, dtype=F64))
    for count in (1, 5):
        runs = [
            kernel.replace(compile=compiled).steps(start, torch.Generator().manual_seed(1), count)
            for compiled in (False, True)
        ]
        (last, trace, info), (fast_last, fast_trace, fast_info) = runs
        torch.testing.assert_close(fast_trace.position, trace.position)
        torch.testing.assert_close(fast_last.grad, last.grad)
        torch.testing.assert_close(fast_info["energy"], info["energy"])
        assert torch.equal(fast_info["num_gradients"], info["num_gradients"])
