"""The transitions of a run, one by one, of kernels that make them one by one or many at once."""

from __future__ import annotations

from typing import Any

import torch

from hmcvi.kernels.mcmc.kernel import Info, Kernel, map_tensors
from hmcvi.sampling.draws import End
from hmcvi.sampling.settings import restored, state_dict


class Moves:
    """`next()` is a transition, `several()` are some, `end()` is where the run then stands.

    A chunk of transitions can only be made as a whole: a run that stops within one stands at its beginning,
    with so many made, and repeats it when it goes on.
    """

    def __init__(self, kernel: Kernel, template: Any, end: End) -> None:
        self.kernel, self._settings, self._made = kernel, end.settings, end.made
        self._state = restored(template, end.state)  # where the next chunk begins
        self._generator = torch.Generator(template.position.device)
        self._generator.set_state(end.generator)
        if self._made:
            self._make_chunk()

    def next(self) -> tuple[Any, Info]:
        """The state after one more transition, and its report."""
        if self.kernel.chunk == 1:
            self._state, info = self.kernel.step(self._state, self._generator)
            return self._state, info
        states, infos = self.several(1)
        return map_tensors(lambda part: part[0], states), {name: part[0] for name, part in infos.items()}

    def several(self, most: int) -> tuple[Any, Info]:
        """The states after each of `most` transitions, or those left of a chunk, and reports.  [n, ...]"""
        if self._made in (0, self.kernel.chunk):
            self._make_chunk()
            self._made = 0
        rows = slice(self._made, min(self._made + most, self.kernel.chunk))
        self._made = rows.stop
        states, infos = self._trace
        return map_tensors(lambda part: part[rows], states), {n: part[rows] for n, part in infos.items()}

    def _make_chunk(self) -> None:
        self._before = self._state, self._generator.get_state()
        self._state, *self._trace = self.kernel.steps(self._state, self._generator)

    def end(self) -> End:
        if 0 < self._made < self.kernel.chunk:
            state, generator = self._before
            return End(state_dict(state), generator, self._settings, self._made)
        return End(state_dict(self._state), self._generator.get_state(), self._settings)
