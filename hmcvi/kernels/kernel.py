"""Markov kernels that leave one density invariant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

Info = dict[str, Tensor]


class Kernel(ABC):
    """init(position) -> state;  step(state, generator=None) -> (state, info).

    Leading dimensions are independent chains.  A chain that fails is rejected, never an exception.
    """

    @abstractmethod
    def init(self, position: Tensor) -> Any:
        """The state of chains at `position` [..., d]."""

    @abstractmethod
    def step(self, state: Any, generator: torch.Generator | None = None) -> tuple[Any, Info]:
        """One transition, and its diagnostics [...]."""
