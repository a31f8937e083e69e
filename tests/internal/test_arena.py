"""Tensors in the arena: the same values side by side, and memory that goes when they go."""

from __future__ import annotations

import threading

import pytest
import torch

from hmcvi.internal.arena import ALIGNMENT, BLOCK, Arena


def test_what_is_kept_has_the_same_values_and_no_graph() -> None:
    arena = Arena()
    given = [
        torch.randn(5, 3, requires_grad=True) * 2,
        torch.randn(4, 3, dtype=torch.float64).T,  # not contiguous
        torch.tensor(True),
        torch.arange(7, dtype=torch.uint8),
        torch.zeros(0, 2),
    ]
    kept = [arena.keep(tensor) for tensor in given]
    for tensor, copy in zip(given, kept, strict=True):
        assert torch.equal(tensor, copy) and tensor.dtype == copy.dtype and not copy.requires_grad
        assert copy.data_ptr() % copy.element_size() == 0
    assert len({copy.untyped_storage().data_ptr() for copy in kept}) == 1


def test_tensors_do_not_overlap_and_blocks_follow_one_another() -> None:
    arena, size = Arena(), BLOCK // 8
    kept = [arena.keep(torch.full((size - 1,), value, dtype=torch.uint8)) for value in range(20)]
    assert all((tensor == value).all() for value, tensor in enumerate(kept))
    assert len({tensor.untyped_storage().data_ptr() for tensor in kept}) == 3
    small = arena.keep(torch.ones(1)), arena.keep(torch.ones(1))
    assert small[1].data_ptr() - small[0].data_ptr() == ALIGNMENT


def test_large_tensors_stay_where_they_are() -> None:
    large = torch.zeros(BLOCK, dtype=torch.uint8)
    assert Arena().keep(large).data_ptr() == large.data_ptr()


def test_every_thread_has_its_own() -> None:
    arena = Arena()
    here, there = arena.keep(torch.ones(2)), []
    thread = threading.Thread(target=lambda: there.append(arena.keep(torch.zeros(2))))
    thread.start()
    thread.join()
    assert here.untyped_storage().data_ptr() != there[0].untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_copy_can_be_changed_alone(dtype: torch.dtype) -> None:
    arena = Arena()
    first, second = arena.keep(torch.ones(3, dtype=dtype)), arena.keep(torch.ones(3, dtype=dtype))
    first.zero_()
    assert (second == 1).all()
