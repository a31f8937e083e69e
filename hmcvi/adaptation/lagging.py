"""Chains that lag behind the others: left out of what warm-up learns, and in the end restarted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.internal.random import integer

SPREADS = 10.0  # absolute deviations below the median that no chain of a common density stays at
FEW = 8  # chains
LONG = 20  # transitions
PATIENCE = 0.75  # of a window, after which a chain that lags is restarted


def keeping_up(log_prob: Tensor, dim: int) -> Tensor:
    """Whether log γ is in reach of the other chains: ≥ median − 10 · (median deviation) − d.  [...]

    Few chains do not show what is usual among them: all of them count.
    """
    rows = log_prob.detach().double().flatten()
    if len(rows) < FEW:
        return torch.ones_like(log_prob, dtype=torch.bool)
    middle = rows.median()
    reach = SPREADS * (rows - middle).abs().median() + dim
    return (rows >= middle - reach).view(log_prob.shape)


class Laggards:
    """Counts how often chains lag or stand still, and restarts those that do most of the time.

    restarted: how many chains have been, in total.
    """

    def __init__(self) -> None:
        self.restarted = 0
        self.forget()

    def forget(self) -> None:
        """Begin to count anew."""
        self._count = 0
        self._behind: Tensor | int = 0
        self._still: Tensor | int = 0

    def observe(self, keeps_up: Tensor, accepted: Tensor) -> None:
        """A transition.  [chains]"""
        self._count += 1
        self._behind, self._still = self._behind + (~keeps_up).long(), self._still + (~accepted).long()

    def num_still(self) -> int:
        """Chains that accepted nothing since the last restart, if that is long ago."""
        if not isinstance(self._still, Tensor) or self._count < LONG:
            return 0
        return int((self._still == self._count).sum())

    def restart(self, density: Density, state: Any, generator: torch.Generator | None) -> Any:
        """The state with every laggard of the last transitions put where another chain is.

        Only where a minority lags, and all chains have the same density.
        """
        lost = self._lost()
        self.forget()
        if lost is None or not _is_shared(density, state.position):
            return state
        others, places = (~lost).nonzero()[:, 0], torch.arange(len(lost), device=lost.device)
        for chain in lost.nonzero()[:, 0].tolist():
            places[chain] = others[integer(0, len(others) - 1, generator)]
        self.restarted += int(lost.sum())
        return type(state)(*(None if part is None else part[places] for part in state))

    def _lost(self) -> Tensor | None:
        """The chains that lag, if they are few.  [chains]"""
        if not isinstance(self._behind, Tensor) or not isinstance(self._still, Tensor):
            return None
        if self._behind.ndim != 1:
            return None
        lost = (self._behind > PATIENCE * self._count) | (self._still == self._count)
        return lost if 0 < int(lost.sum()) < len(lost) / 2 and self._count >= 5 else None


@torch.no_grad()
def _is_shared(density: Density, position: Tensor) -> bool:
    """Whether all chains have the same density: at one point it has one value."""
    value = density.finite_log_prob(position[:1].repeat(len(position), 1))
    return torch.allclose(value, value[:1].expand_as(value), rtol=1e-3, atol=1e-3)
