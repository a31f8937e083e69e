"""Checks of what users give: the value, what was wrong with it, what would be right."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import Tensor


def at_least(least: float, **values: float) -> None:
    """Refuse numbers below `least`, by their names."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def whole(name: str, value: int, least: int) -> int:
    """A count that must be a whole number, at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    at_least(least, **{name: number})
    return number


def one_of(name: str, value: object, options: Iterable[object]) -> None:
    """Refuse what is not among the options."""
    if value not in (known := list(options)):
        raise ValueError(f"{name} must be one of {', '.join(map(str, known))}, got {value!r}")


def positive(value: float | Tensor, name: str) -> Tensor:
    """A setting that must be positive, as a tensor."""
    tensor = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)
    if not ((tensor > 0) & (tensor < torch.inf)).all():
        raise ValueError(f"{name} must be positive, got {value}")
    return tensor.detach()
