"""Brackets of a slice: how the first one grows before it is shrunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Point(NamedTuple):
    """A point of the curve: z [..., d], log γ(z) [...], and the level that is compared to the height."""

    position: Tensor
    log_prob: Tensor
    level: Tensor


Curve = Callable[[Tensor], Point]  # λ [...] -> the point z(λ); z(0) is where the chain is


class Bracket(NamedTuple):
    """An interval of λ around 0 and what it cost to find.  [...]"""

    lower: Tensor
    upper: Tensor
    num_step_outs: Tensor
    num_edges: Tensor  # ends that were looked at


def first_bracket(place: Tensor) -> Bracket:
    """The interval of length 1 whose upper end is at `place` ~ U(0, 1).  [...]"""
    none = torch.zeros_like(place, dtype=torch.int64)
    return Bracket(place - 1, place, none, none)


def step_out(line: Curve, height: Tensor, bracket: Bracket, below: Tensor, above: Tensor) -> Bracket:
    """Move the ends out by 1 while they are on the slice, `below` and `above` times at most.

    Each round looks at one end per chain, below before above.  below, above: [...]
    """
    lower, upper, num_step_outs, num_edges = bracket
    offset = torch.zeros_like(lower)
    while ((below > 0) | (above > 0)).any():
        down, up = below > 0, (below == 0) & (above > 0)
        offset = lower.where(down, upper.where(up, offset))  # chains that are done wait
        inside = line(offset).level > height
        lower, upper = lower - (down & inside).to(lower), upper + (up & inside).to(upper)
        below = (below - 1).where(down & inside, 0)
        above = above.where(~up, (above - 1).where(inside, 0))
        num_edges = num_edges + (down | up)
        num_step_outs = num_step_outs + ((down | up) & inside)
    return Bracket(lower, upper, num_step_outs, num_edges)


class Doubling:
    """A bracket doubled on random sides while an end is on the slice, and the curve restricted to it.

    A chain may only go where doubling with the same sides could have ended with the same bracket.  Seen from
    λ, the brackets on the way are the halves of halves around λ, down to length 1; if one of them leaves out
    the chain and has both ends off the slice, doubling from λ would have stopped there, and the restricted
    curve has level −∞ at λ.  [Neal 2003, figures 4 and 6]

    sides: doublings are downwards where they are below ½.  [..., p]   alive: chains that have a density.
    """

    def __init__(self, line: Curve, height: Tensor, bracket: Bracket, sides: Tensor, alive: Tensor) -> None:
        self._line, self._height = line, height
        self._below, self._above = self._on_slice(bracket.lower), self._on_slice(bracket.upper)
        self.bracket = bracket._replace(num_edges=bracket.num_edges + 2 * alive)
        for side in sides.unbind(-1):
            growing = alive & (self._below | self._above)
            if not growing.any():
                break
            self._double(growing & (side < 0.5), growing & (side >= 0.5))
        self.num_checks = torch.zeros_like(self.bracket.num_edges)
        self._asked, self._reachable = torch.zeros_like(height), alive

    def __call__(self, offset: Tensor) -> Point:
        point = self._line(offset)
        asked = (point.level > self._height) & (offset != self._asked)  # chains that are done wait
        self._reachable = self._check(offset, asked).where(asked, self._reachable)
        self._asked = offset
        return point._replace(level=point.level.where(self._reachable, -torch.inf))

    def _on_slice(self, offset: Tensor) -> Tensor:
        return self._line(offset).level > self._height

    def _double(self, down: Tensor, up: Tensor) -> None:
        lower, upper, num_step_outs, num_edges = self.bracket
        width = upper - lower
        lower, upper = (lower - width).where(down, lower), (upper + width).where(up, upper)
        inside = self._on_slice(lower.where(down, upper))
        self._below, self._above = inside.where(down, self._below), inside.where(up, self._above)
        self.bracket = Bracket(lower, upper, num_step_outs + (down | up), num_edges + (down | up))

    def _check(self, offset: Tensor, active: Tensor) -> Tensor:
        """Whether doubling from λ could have ended with this bracket, for the active chains.  [...]"""
        lower, upper = self.bracket.lower, self.bracket.upper
        below, above = self._below, self._above
        reachable, apart = torch.ones_like(active), torch.zeros_like(active)
        while (active := active & reachable & (upper - lower > 1.1)).any():
            middle = (lower + upper) / 2
            inside = self._on_slice(middle.where(active, offset))
            apart = apart | ((middle > 0) != (middle > offset))
            left, right = active & (offset < middle), active & (offset >= middle)
            upper, above = middle.where(left, upper), inside.where(left, above)
            lower, below = middle.where(right, lower), inside.where(right, below)
            reachable = reachable & ~(active & apart & ~below & ~above)
            self.num_checks = self.num_checks + active
        return reachable
