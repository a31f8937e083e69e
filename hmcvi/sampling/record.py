"""Room for the draws of a run, taken once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hmcvi.kernels.mcmc.kernel import Info

LAST = ("energy", "log_prob")


class Recorder:
    """Positions and statistics of `num_draws` draws, each the last of `thin` transitions.

    Of those transitions counts (num_…, diverged) are added up, rates averaged; the energy is the last one's.
    """

    def __init__(self, num_draws: int, thin: int) -> None:
        self.num_draws, self.thin, self.count = num_draws, thin, 0
        self._position: Tensor | None = None  # [draws, chains, d]: a draw is written in one piece
        self._stats: dict[str, Tensor] = {}
        self._sums: Info = {}

    def observe(self, info: Info) -> None:
        """A transition, kept or not."""
        if self.thin == 1:
            self._sums = info
            return
        for name, value in info.items():
            if name in LAST:
                self._sums[name] = value
            else:
                share = value.long() if _is_count(name) else value / self.thin
                self._sums[name] = self._sums[name] + share if name in self._sums else share

    def keep(self, state: Any) -> Info:
        """The draw to keep, and its statistics."""
        info = {**self._sums, "log_prob": state.log_prob}
        self._write(self.count, state.position, info)
        self.count, self._sums = self.count + 1, {}
        return info

    def keep_all(self, states: Any, infos: Info) -> None:
        """Draws in a row, each of one transition.  [n, chains, ...]"""
        rows = slice(self.count, self.count + len(states.position))
        self._write(rows, states.position, {**infos, "log_prob": states.log_prob})
        self.count = rows.stop

    def _write(self, place: int | slice, position: Tensor, info: Info) -> None:
        skipped = 0 if isinstance(place, int) else 1  # leading dimensions that count draws
        if self._position is None:
            self._position = position.new_empty(self.num_draws, *position.shape[skipped:])
            self._stats = {
                name: torch.empty(
                    self.num_draws, *value.shape[skipped:], dtype=_dtype(name, value), device=value.device
                )
                for name, value in info.items()
            }
        self._position[place] = position
        for name, value in info.items():
            self._stats[name][place] = value

    def records(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """[chains, draws, d] and {name: [chains, draws]} of the first `count` kept."""
        assert self._position is not None
        stats = {name: values[:count].transpose(0, 1) for name, values in self._stats.items()}
        return self._position[:count].transpose(0, 1), stats


def _is_count(name: str) -> bool:
    return name == "diverged" or name.startswith("num_")


def _dtype(name: str, value: Tensor) -> torch.dtype:
    return torch.int64 if _is_count(name) else value.dtype
