"""Named variables and flat vectors are the same numbers in the same order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmcvi.internal.layout import Layout

SHAPES = st.dictionaries(
    st.text(min_size=1, max_size=3),
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    min_size=1,
    max_size=4,
)
BATCHES = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@given(SHAPES, BATCHES)
def test_flattening_is_undone(shapes: dict[str, tuple[int, ...]], batch: tuple[int, ...]) -> None:
    layout = Layout(shapes)
    position = torch.arange(float(torch.Size((*batch, layout.dim)).numel())).reshape(*batch, layout.dim)
    variables = layout.unflatten(position)
    assert list(variables) == list(shapes)
    assert {name: tuple(value.shape) for name, value in variables.items()} == {
        name: (*batch, *shape) for name, shape in shapes.items()
    }
    assert torch.equal(layout.flatten(variables), position)
    assert torch.equal(layout.flatten(dict(reversed(variables.items()))), position)


@given(SHAPES)
def test_slices_cover_the_vector_in_order(shapes: dict[str, tuple[int, ...]]) -> None:
    layout = Layout(shapes)
    covered = [index for part in layout.slices.values() for index in range(layout.dim)[part]]
    assert covered == list(range(layout.dim))
    for name, value in layout.unflatten(torch.arange(float(layout.dim))).items():
        assert value.flatten().tolist() == list(range(layout.dim))[layout.slices[name]]


def test_the_last_dimension_runs_fastest() -> None:
    variables = Layout({"a": (2, 2), "b": ()}).unflatten(torch.arange(5.0))
    assert variables["a"].tolist() == [[0, 1], [2, 3]] and variables["b"].item() == 4


def test_variables_share_the_memory_of_the_vector() -> None:
    position = torch.zeros(4, 5)
    Layout({"a": (2, 2), "b": ()}).unflatten(position)["a"] += 1
    assert position[:, :4].eq(1).all() and position[:, 4].eq(0).all()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"a": torch.zeros(3, 2)}, r"expected the variables \['a', 'b'\], got \['a'\]"),
        ({"a": torch.zeros(3, 4), "b": torch.zeros(3)}, r"a must be \[chains, \*\(2,\)\], got \[3, 4\]"),
        ({"a": torch.zeros(()), "b": torch.zeros(3)}, r"a must be \[chains, \*\(2,\)\], got \[\]"),
        ({"a": torch.zeros(3, 2), "b": torch.zeros(4)}, "different numbers of chains"),
        ({"a": torch.zeros(3, 2), "b": torch.zeros(3).double()}, "different dtypes"),
    ],
)
def test_other_variables_are_refused(variables: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout({"a": (2,), "b": ()}).flatten(variables)


def test_vectors_of_other_length_and_no_variables_are_refused() -> None:
    with pytest.raises(ValueError, match="fill 3 dimensions, the position has 4"):
        Layout({"a": (2,), "b": ()}).unflatten(torch.zeros(5, 4))
    with pytest.raises(ValueError, match="at least one variable"):
        Layout({})


def test_variables_flatten_where_sizes_are_symbols() -> None:
    """As in programs for any number of chains."""
    from torch.fx.experimental.proxy_tensor import make_fx

    layout = Layout({"a": (2, 2), "b": ()})
    trace = make_fx(lambda z: layout.flatten(layout.unflatten(z)), tracing_mode="symbolic")
    program, position = trace(torch.rand(3, 5)), torch.rand(7, 5)
    assert torch.equal(program(position), position)
