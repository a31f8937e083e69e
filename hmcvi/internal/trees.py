"""Named tuples of tensors, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def map_tensors(function: Callable[..., Tensor], *trees: Any) -> Any:
    """Apply a function to tensors, None, or named tuples of them, entry by entry."""
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return function(*trees)
    return type(first)(*(map_tensors(function, *parts) for parts in zip(*trees, strict=True)))
