"""The transitions of a run, one by one, of kernels that make them one by one or many at once."""

from __future__ import annotations

from typing import Any

import torch

from hmcvi.kernels.kernel import Info, Kernel, map_tensors
from hmcvi.sampling.draws import End
from hmcvi.sampling.settings import restored, state_dict


class Moves:
    """`next()` is a transition, `end()` where the run then stands.

    A chunk of transitions can only be made as a whole: a run that stops within one stands at its beginning,
    with so many made, and repeats it when it goes on.
    """

    def __init__(self, kernel: Kernel, template: Any, end: End) -> None:
        self.kernel, self._settings, self._made = kernel, end.settings, end.made
        self._state = restored(template, end.state)  # where the next chunk begins
        self._generator = torch.Generator(template.position.device)
        self._generator.set_state(end.generator)
        self._ahead: list[tuple[Any, Info]] = []  # made, not asked for yet; the next one is the last
        self._before = self._state, end.generator  # where this chunk began
        if self._made:
            self._make_chunk()
            del self._ahead[-self._made :]

    def next(self) -> tuple[Any, Info]:
        """The state after one more transition, and its report."""
        if self.kernel.chunk == 1:
            self._state, info = self.kernel.step(self._state, self._generator)
            return self._state, info
        if not self._ahead:
            self._make_chunk()
            self._made = 0
        self._made += 1
        return self._ahead.pop()

    def _make_chunk(self) -> None:
        self._before = self._state, self._generator.get_state()
        self._state, states, infos = self.kernel.steps(self._state, self._generator)
        rows = zip(*(values.unbind() for values in infos.values()), strict=True)
        self._ahead = [
            (map_tensors(lambda part, k=k: part[k], states), dict(zip(infos, row, strict=True)))
            for k, row in enumerate(rows)
        ][::-1]

    def end(self) -> End:
        if self._ahead:
            state, generator = self._before
            return End(state_dict(state), generator, self._settings, self._made)
        return End(state_dict(self._state), self._generator.get_state(), self._settings)
