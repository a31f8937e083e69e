"""Slice sampling: uniform moves on {z : γ(z) > h} along a curve through the chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.internal import random
from hmcvi.internal.checks import at_least, one_of, positive
from hmcvi.kernels.mcmc.bracket import Bracket, Curve, Doubling, Point, first_bracket, step_out
from hmcvi.kernels.mcmc.kernel import Info, Kernel

# A shrink leaves at most ¾ of a bracket on average: after 200 it is below 10⁻¹⁶ of its first width, where
# positions are no longer told apart, in all but one of 10⁹ cases.
MAX_SHRINKS = 200
DIRECTIONS = ("random", "axis")
EXPANSIONS = ("stepping", "doubling")


@dataclass(frozen=True, eq=False)
class LinearSlice(Kernel):
    """h ~ U(0, γ(z)); a bracket of λ around 0 on the line z + λ v; λ uniform on it, shrunk until γ(z') > h.

    width: w > 0, the length of the first bracket, a number, [d] or one per chain [..., 1].
    max_step_out: how often the bracket may grow while an end of it is on the slice.
    direction: v = w · a uniformly random unit vector ("random") or coordinate axis ("axis"), one per chain.
    expansion: the bracket grows by w, a budget split at random between its ends ("stepping"), or to twice its
        length on a random side ("doubling"), for widths that may be much too small.

    The slice never rejects.  A chain whose bracket shrinks to nothing, or without density, stays and reports
    accepted = False.  [Neal 2003; Graham 2018, algorithm 4]

    >>> kernel = LinearSlice(Density(lambda z: -0.5 * z.square().sum(-1)), width=2.0, max_step_out=4)
    >>> state, info = kernel.step(kernel.init(torch.zeros(3, 2)), torch.Generator().manual_seed(0))
    >>> state.position.shape, sorted(info)
    (torch.Size([3, 2]), ['accepted', 'num_evaluations', 'num_shrinks', 'num_step_outs'])
    """

    density: Density
    width: float | Tensor
    max_step_out: int = 0
    direction: str = "random"
    expansion: str = "stepping"

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", positive(self.width, "width"))
        at_least(0, max_step_out=self.max_step_out)
        one_of("direction", self.direction, DIRECTIONS)
        one_of("expansion", self.expansion, EXPANSIONS)

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        state = state._replace(log_prob=state.log_density(self.density))
        direction = torch.as_tensor(self.width).to(state.position) * self._draw_direction(
            state.position, generator
        )
        start, log_prob = state.position, state.log_prob
        assert log_prob is not None

        def line(offset: Tensor) -> Point:
            position = self._fold(start + offset[..., None] * direction)
            log_prob = self.density.finite_log_prob(position)
            return Point(position, log_prob, log_prob)

        height = log_prob + random.uniform(log_prob, generator).log()
        bracket, curve = self._expand(line, height, log_prob, generator)
        state, info = shrink(curve, height, bracket.lower, bracket.upper, state, generator)
        num_evaluations = info["num_evaluations"] + bracket.num_edges
        if isinstance(curve, Doubling):
            num_evaluations = num_evaluations + curve.num_checks
        return state, info | {"num_step_outs": bracket.num_step_outs, "num_evaluations": num_evaluations}

    def _expand(
        self, line: Curve, height: Tensor, log_prob: Tensor, generator: torch.Generator | None
    ) -> tuple[Bracket, Curve]:
        """The bracket to shrink, and the curve on which points are looked for."""
        bracket, alive = first_bracket(random.uniform(log_prob, generator)), log_prob > -torch.inf
        if self.max_step_out == 0:
            return bracket, line
        if self.expansion == "doubling":
            sides = random.uniform(log_prob[..., None].expand(*log_prob.shape, self.max_step_out), generator)
            doubling = Doubling(line, height, bracket, sides, alive)
            return doubling.bracket, doubling
        below = _integer(log_prob, self.max_step_out + 1, generator)
        above = self.max_step_out - below
        return step_out(line, height, bracket, below.where(alive, 0), above.where(alive, 0)), line

    def _fold(self, position: Tensor) -> Tensor:
        """Where the line goes at the boundary of the space, if there is one."""
        return position

    def _draw_direction(self, position: Tensor, generator: torch.Generator | None) -> Tensor:
        """A unit vector, as likely as with coordinates negated (an axis: up to v → −v).  [..., d]"""
        if self.direction == "axis":
            axis = _integer(position[..., 0], position.shape[-1], generator)
            return torch.nn.functional.one_hot(axis, position.shape[-1]).to(position)
        normal = random.standard_normal(position, generator)
        return normal / normal.norm(dim=-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class ReflectiveSlice(LinearSlice):
    """A linear slice on the unit cube [0, 1]^d, its line reflected at the faces:

        z(λ) = fold(z + λ v),   fold(u) = r if r < 1 else 2 − r,   r = u mod 2.

    The fold keeps volume, and seen from z(λ) the path is the same with some coordinates of v negated, whose
    distribution is that of v.  Arguments as in `LinearSlice`.  [Graham 2018, §3.5]

    >>> kernel = ReflectiveSlice(Density(lambda u: -3 * u.sum(-1)), width=1.0)
    >>> state, _ = kernel.step(kernel.init(torch.full((3, 2), 0.5)), torch.Generator().manual_seed(0))
    >>> bool(((0 <= state.position) & (state.position <= 1)).all())
    True
    """

    def init(self, position: Tensor) -> Phase:
        outside = ~((position >= 0) & (position <= 1))
        if outside.any():
            raise ValueError(
                f"positions must lie in the unit cube [0, 1]^d, got {position[outside][0].item():g}: "
                "map the variables to the cube, or use LinearSlice"
            )
        state: Phase = super().init(position)
        return state

    def _fold(self, position: Tensor) -> Tensor:
        wrapped = position.remainder(2)
        return wrapped.where(wrapped < 1, 2 - wrapped)


def shrink(
    curve: Curve,
    height: Tensor,
    lower: Tensor,
    upper: Tensor,
    state: Phase,
    generator: torch.Generator | None,
) -> tuple[Phase, Info]:
    """λ ~ U(lower, upper) until the point is above the height; a miss becomes the end on its side of 0.

    Chains that are done, or never had a density, wait where they are for the others, so that the last point
    of the curve that is looked at is the new one of every chain.  lower ≤ 0 ≤ upper: [...]
    """
    log_prob, position = state.log_prob, state.position
    assert log_prob is not None
    searching = alive = log_prob > -torch.inf
    num_shrinks, offset = torch.zeros_like(alive, dtype=torch.int64), torch.zeros_like(lower)
    for _ in range(MAX_SHRINKS):
        if not searching.any():
            break
        offset = (lower + (upper - lower) * random.uniform(lower, generator)).where(searching, offset)
        point = curve(offset)
        found = searching & (point.level > height)
        position = point.position.where(found[..., None], position)
        log_prob = point.log_prob.where(found, log_prob)
        searching = searching & ~found
        lower, upper = offset.where(offset < 0, lower), offset.where(offset >= 0, upper)
        num_shrinks = num_shrinks + searching
    accepted = alive & ~searching
    info = {
        "accepted": accepted,
        "num_shrinks": num_shrinks,
        "num_evaluations": num_shrinks + accepted,
    }
    return state._replace(position=position, log_prob=log_prob, grad=None), info


def _integer(like: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """One integer per chain, uniform on 0, …, count − 1."""
    scaled = (random.uniform(like, generator) * count).to(torch.int64)
    return scaled.clamp(max=count - 1)  # u · count may round up to count
