"""Named variables of any shape as one flat vector, the form in which chains move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class Layout:
    """{name: shape} ↔ R^d, in the order given.

    >>> layout = Layout({"mu": (), "theta": (2, 2)})
    >>> layout.dim, layout.slices["theta"]
    (5, slice(1, 5, None))
    >>> {name: tuple(value.shape) for name, value in layout.unflatten(torch.zeros(7, 5)).items()}
    {'mu': (7,), 'theta': (7, 2, 2)}
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        if not shapes:
            raise ValueError("name at least one variable: {name: shape}")
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.slices: dict[str, slice] = {}
        self.dim = 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            self.slices[name] = slice(self.dim, self.dim + size)
            self.dim += size

    def unflatten(self, position: Tensor) -> dict[str, Tensor]:
        """[..., d] -> {name: [..., *shape]}, views of the same memory."""
        if position.shape[-1] != self.dim:
            raise ValueError(
                f"the variables fill {self.dim} dimensions, the position has {position.shape[-1]}"
            )
        batch = position.shape[:-1]
        return {
            name: position[..., self.slices[name]].reshape(batch + shape)
            for name, shape in self.shapes.items()
        }

    def flatten(self, variables: Mapping[str, Tensor]) -> Tensor:
        """{name: [..., *shape]} -> [..., d]"""
        if variables.keys() != self.shapes.keys():
            raise ValueError(f"expected the variables {list(self.shapes)}, got {list(variables)}")
        flat = []
        for name, shape in self.shapes.items():
            value = variables[name]
            if not isinstance(value, Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
            batch = value.ndim - len(shape)
            if batch < 0 or tuple(value.shape[batch:]) != shape:
                raise ValueError(f"{name} must be [chains, *{shape}], got {list(value.shape)}")
            flat.append(value.reshape(*value.shape[:batch], -1))
        if any(value.shape[:-1] != flat[0].shape[:-1] for value in flat):  # may be symbols, without a hash
            batches = {name: list(v.shape[:-1]) for name, v in zip(self.shapes, flat, strict=True)}
            raise ValueError(f"the variables have different numbers of chains: {batches}")
        if len(kinds := {(value.dtype, value.device) for value in flat}) > 1:
            raise ValueError(f"the variables have different dtypes or devices: {kinds}")
        return torch.cat(flat, -1)
