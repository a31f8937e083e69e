"""Checks of arguments, with errors that name the value and what would be right."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def at_least(least: float, **values: float) -> None:
    """Refuse numbers below `least`; the keywords are their names in errors."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def whole(name: str, value: int, least: int) -> int:
    """A count, refused if it is not a whole number or below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    at_least(least, **{name: number})
    return number


def one_of(name: str, value: object, options: Iterable[object]) -> None:
    """Refuse a value that is not among the options, and name the nearest."""
    if value not in (known := list(options)):
        near = difflib.get_close_matches(str(value), [str(option) for option in known], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be one of {', '.join(map(str, known))}, got {value!r}{hint}")


def choose(name: str, choice: str, options: Mapping[str, T]) -> T:
    """The option of this name, refused if there is none."""
    one_of(name, choice, options)
    return options[choice]


def positive(value: float | Tensor, name: str) -> Tensor:
    """A setting as a tensor, refused if it is not positive and finite."""
    tensor = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)
    least, most = (tensor, tensor) if tensor.numel() == 1 else tensor.aminmax()
    if not (least.item() > 0 and most.item() < math.inf):
        raise ValueError(f"{name} must be positive, got {value}")
    return tensor.detach()
