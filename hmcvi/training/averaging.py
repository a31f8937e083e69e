"""A moving average of the weights, which is evaluated and kept in place of the last ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

RAMP = 10  # the average forgets the start: decay_t = min(decay, (1 + t) / (RAMP + t))


class WeightAverage:
    """θ̄ ← decay_t · θ̄ + (1 − decay_t) · θ after every step t; decay 0 is θ itself.

    With a falling learning rate it removes what noise is left, and shows before the end of a run where it
    is heading.  [Polyak & Juditsky 1992]
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay, self.num_updates = model, decay, 0
        self.weights: list[Tensor] = [p.detach().clone() for p in model.parameters()] if decay else []

    @torch.no_grad()
    def update(self) -> None:
        self.num_updates += 1
        if self.weights:
            decay = min(self.decay, (1 + self.num_updates) / (RAMP + self.num_updates))
            torch._foreach_lerp_(self.weights, list(self.model.parameters()), 1 - decay)

    @torch.no_grad()
    def load(self) -> None:
        """Put the average into the model."""
        for parameter, mean in zip(self.model.parameters(), self.weights, strict=False):
            parameter.copy_(mean)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the model has the averaged weights."""
        last = [p.detach().clone() for p in self.model.parameters()]
        self.load()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.model.parameters(), last, strict=True):
                    parameter.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "num_updates": self.num_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights, self.num_updates = state["weights"], state["num_updates"]
