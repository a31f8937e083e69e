"""Recorded functions: the same values and gradients, whatever their Python does with tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hmcvi.internal.recorded import Recorded, Replayed, Untraceable, holds
from hmcvi.internal.recorder import SMALL

F64 = torch.float64
CONSTANT = torch.linspace(-1, 1, 3, dtype=F64)
MATRIX = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 1.5]], dtype=F64)


def reshaped(x: Tensor) -> Tensor:
    """Views of views, sums of nothing, neutral operations, constants computed again and again."""
    y = (x[:, None, :] * torch.ones(3, dtype=F64) + torch.zeros(())).squeeze(1).view(-1).reshape(-1, 3)
    return ((y.T.contiguous().T ** 1 + CONSTANT.exp()).unsqueeze(-1).sum(-1) * CONSTANT.exp()).sum(-1)


def masked(x: Tensor) -> Tensor:
    """In place, on a tensor of its own; a branch by a mask; several results of an operation."""
    y = x.square()
    y.masked_fill_(x < 0, 0.5)
    return torch.where(x > 0.3, y.log1p(), y).sum(-1) + x.max(-1).values


def accumulated(x: Tensor) -> Tensor:
    """In place, on tensors that were constant until then, among others of the same numbers."""
    total, factor = torch.zeros_like(x), torch.zeros(3, dtype=F64)
    total += x
    factor.add_(1.5)
    return (total * factor + torch.zeros(3, dtype=F64)).sum(-1)


def linear_algebra(x: Tensor) -> Tensor:
    matrix = MATRIX + torch.diag_embed(x.exp())
    return torch.linalg.cholesky(matrix).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def twice_differentiated(x: Tensor) -> Tensor:
    """Forces, as in a chain, and vmap."""
    value = torch.func.vmap(lambda row: (row.sin() * (row @ MATRIX)).sum())(x)
    (force,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return value + (force * CONSTANT).sum(-1)


def differentiated_signs(x: Tensor) -> Tensor:
    """Of |x|, whose second derivatives are tensors of zeros without memory, as those of Laplace priors."""
    value = (x.abs() + 0.1).log().sum(-1)
    (force,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return value + force.square().sum(-1)


FUNCTIONS = [reshaped, masked, accumulated, linear_algebra, twice_differentiated, differentiated_signs]


@pytest.mark.parametrize("rows", [4, SMALL + 1])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_values_and_gradients_are_the_same(function: Callable[[Tensor], Tensor], rows: int) -> None:
    torch.manual_seed(0)
    recorded = Recorded(lambda x, scale: (function(scale * x), scale * x), [_point(rows), _scale()])
    for _ in range(3):
        x, scale = _point(rows), _scale()
        weights = torch.randn(rows, dtype=F64), torch.randn(rows, 3, dtype=F64)
        found, expected = recorded(x, scale), (function(scale * x), scale * x)
        assert found is not None
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found, (x, scale), weights),
            torch.autograd.grad(expected, (x, scale), weights),
        )


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_gradients_are_part_of_what_is_replayed(function: Callable[[Tensor], Tensor]) -> None:
    def value_and_grad(x: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = function(x)
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    torch.manual_seed(0)
    replayed, x = Replayed(value_and_grad, [_point().detach()]), _point().detach()
    found = replayed(x)
    assert found is not None and not any(part.requires_grad for part in found)
    torch.testing.assert_close(found, value_and_grad(x))


def test_it_is_shorter_than_what_it_records() -> None:
    """Constants, repetitions and empty steps are left out: exp(x) once, one sum, and their derivative."""

    def function(x: Tensor) -> tuple[Tensor]:
        parts = [(x.exp().view(-1).view(4, 3) * (2 * CONSTANT.exp())).detach() for _ in range(5)]
        return ((parts[0] + x - x).sum(),)

    assert Recorded(function, [_point()])._first.num_operations <= 5


def test_without_gradients() -> None:
    recorded, x = Recorded(lambda x: (x.exp(),), [_point()]), _point()
    with torch.no_grad():
        (value,) = recorded(x) or ()
    assert not value.requires_grad
    torch.testing.assert_close(value, x.detach().exp())


def test_what_is_assumed_is_looked_at() -> None:
    def function(x: Tensor) -> tuple[Tensor]:
        return (x.sum(-1) if holds(x < 10) else x.prod(-1),)

    for recorded in (Recorded(function, [_point()]), Replayed(function, [_point()])):
        assert recorded(_point()) is not None
        assert recorded(_point() + 100) is None
    assert not holds(torch.tensor([True, False])) and holds(torch.tensor([True, True]))


def test_failed_linear_algebra_is_looked_at() -> None:
    recorded = Recorded(
        lambda x: (torch.linalg.cholesky(MATRIX - x.sum() * torch.eye(3)).sum(),), [_point() * 0]
    )
    assert recorded(_point() * 0) is not None
    assert recorded(torch.full((4, 3), 10.0, dtype=F64)) is None


def test_branches_on_values_are_refused() -> None:
    with pytest.raises(Untraceable, match="branches on values"):
        Recorded(lambda x: (x.exp() if x.sum() > 0 else x,), [_point()])


def test_other_parameters_are_refused() -> None:
    parameter = torch.ones(3, dtype=F64, requires_grad=True)
    with pytest.raises(Untraceable, match="parameters that are not among its arguments"):
        Recorded(lambda x: (x * parameter,), [_point()])


def test_tensors_that_are_changed_while_seen_elsewhere_are_refused() -> None:
    def function(x: Tensor) -> tuple[Tensor]:
        y = x.exp()
        y[0].zero_()
        return (y,)

    with pytest.raises(Untraceable, match="changes a tensor"):
        Recorded(function, [_point()])


def _point(rows: int = 4) -> Tensor:
    return torch.randn(rows, 3, dtype=F64).requires_grad_()


def _scale() -> Tensor:
    return torch.rand((), dtype=F64).add(0.5).requires_grad_()
