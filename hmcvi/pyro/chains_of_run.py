"""The draws that a kernel has made in Pyro's MCMC, kept to say whether they can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hmcvi.internal.layout import Layout
from hmcvi.sampling.diagnostics import LOOSE_RHAT, MAX_RHAT, problems

MOST_NUMBERS = 5_000_000  # of a chain; of longer ones every second draw is kept, or every fourth …
MANY_DRAWS = 2000  # with fewer, R-hat exceeds its usual limit by chance
KEPT = ("diverged", "energy", "acceptance_rate_auxiliary")


class ChainsOfRun:
    """Chains that one process draws one after the other, by the same kernel and from the same data."""

    def __init__(self) -> None:
        self._source: Sequence[Any] = ()
        self._chains: list[tuple[Tensor, dict[str, Tensor]]] = []
        self._clear()

    def _clear(self) -> None:
        self._rows: list[tuple[Tensor, dict[str, Tensor]]] = []
        self._every, self._count = 1, 0

    def begin(self, source: Sequence[Any]) -> None:
        """Begin a chain.  source: the arguments of the model; chains of other ones are forgotten."""
        same = len(source) == len(self._source)
        if not (same and all(a is b for a, b in zip(source, self._source, strict=True))):
            self._chains = []
        self._source = source
        self._clear()

    def add(self, position: Tensor, info: Mapping[str, Tensor]) -> None:
        """Keep a draw [1, d] and what its transition reports [1]."""
        if self._count % self._every == 0:
            self._rows.append((position[0], {name: info[name][0] for name in KEPT if name in info}))
        self._count += 1
        if len(self._rows) * position.shape[-1] > MOST_NUMBERS:
            self._rows, self._every = self._rows[::2], 2 * self._every

    def end(self) -> None:
        """The chain is complete: compare it to those before it, and later ones to it."""
        if self._rows:
            stats = {name: torch.stack([info[name] for _, info in self._rows]) for name in self._rows[0][1]}
            self._chains.append((torch.stack([position for position, _ in self._rows]), stats))
        self._clear()

    def problems(self, layout: Layout, persistent: bool) -> list[str]:
        """What speaks against trusting the chains that are complete, each with what to try."""
        if not self._chains:
            return []
        kept = [chain for chain in self._chains if len(chain[0]) == len(self._chains[-1][0])]
        position = torch.stack([position for position, _ in kept])
        stats = {name: torch.stack([own[name] for _, own in kept]) for name in kept[-1][1]}
        limit = MAX_RHAT if position.shape[0] * position.shape[1] >= MANY_DRAWS else LOOSE_RHAT
        return problems(layout.unflatten(position), stats, persistent, max_rhat=limit)
