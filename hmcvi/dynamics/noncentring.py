"""Coordinates in which scales and locations that depend on other coordinates are constant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density


@dataclass(frozen=True, eq=False)
class Noncentring:
    """z_i = m_i(w) + exp(ℓ_i(w)) y_i, with w = (z_p1, …, z_pr) the parents of all others.

    y_i ~ N(0, 1) where z_i is normal with scale e^{s_i + a_i·w} about c_i + b_i·w, as in the prior of a
    hierarchy, and where that is multiplied by N(z_i | f_i, e^{2 q_i}), as by data, which bound the scale:

        e^{−2ℓ} = e^{−2(s + a·w)} + e^{−2q},   m = κ (c + b·w) + (1 − κ) f,   κ = e^{2ℓ − 2(s + a·w)}.

    A funnel, whose scale is e^{w/2}, has one scale in terms of y; a_i = ½ is its usual non-centred form, and
    anything between that and 0 a partial one.  Parents come in order: each may depend on those before it.
    [Papaspiliopoulos, Roberts & Sköld 2007; learned, as here: Gorinova, Moore & Hoffman 2020]

    parents: p [r], integers.  location: c [d].  by_location: b [d, r].  log_scale: s [d].
    by_scale: a [d, r].  bound: q [d]; None: ∞.  anchor: f [d]; None: 0.
    """

    parents: Tensor
    location: Tensor
    by_location: Tensor
    log_scale: Tensor
    by_scale: Tensor
    bound: Tensor = None  # type: ignore[assignment]  # until __post_init__
    anchor: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.bound is None:
            object.__setattr__(self, "bound", torch.full_like(self.log_scale, torch.inf))
        if self.anchor is None:
            object.__setattr__(self, "anchor", torch.zeros_like(self.location))

    def to(self, like: Tensor) -> Noncentring:
        """The same in the dtype and on the device of `like`."""
        given = (
            self.location, self.by_location, self.log_scale, self.by_scale, self.bound, self.anchor
        )  # fmt: skip
        return Noncentring(self.parents.to(like.device), *(part.to(like) for part in given))

    def to_reference(self, position: Tensor) -> Tensor:
        """y of z  [..., d]"""
        location, log_scale = self._at(position[..., self.parents])
        return (position - location) * (-log_scale).exp()

    def from_reference(self, reference: Tensor) -> Tensor:
        """z of y  [..., d]"""
        location, log_scale = self._at(self._parents_from(reference[..., self.parents]))
        return location + log_scale.exp() * reference

    def log_det(self, position: Tensor) -> Tensor:
        """log|det ∂z/∂y| at z: Σ_i ℓ_i(w)  [...]"""
        return self._at(position[..., self.parents])[1].sum(-1)

    def pull_back(self, position: Tensor, grad: Tensor) -> Tensor:
        """∇_y (log γ(z(y)) + log|det ∂z/∂y|) from ∇_z log γ.  [..., d]

        The total derivative λ by z_i, through all that depends on it, is known for coordinates that are no
        parents; that of a parent is a sum over those after it.
        """
        moved, share, scale = self._moved(position)
        inner = grad.index_fill(-1, self.parents, 0.0)
        total = grad[..., self.parents] + self._through(inner, moved, share)
        rows, shares = moved[..., self.parents], share[..., self.parents]
        by_location, by_scale = self.by_location[self.parents], self.by_scale[self.parents]
        for later in range(len(self.parents) - 1, 0, -1):  # slopes by itself and those after it are zero
            slope = by_location[later] * shares[..., later, None] + by_scale[later] * rows[..., later, None]
            total = total + total[..., later, None] * slope
        return scale * grad.index_copy(-1, self.parents, total)

    def push_forward(self, position: Tensor, grad: Tensor) -> Tensor:
        """The inverse of `pull_back`: ∇_z log γ from the gradient by y.  [..., d]"""
        moved, share, scale = self._moved(position)
        total = grad / scale
        return total.index_add(-1, self.parents, -self._through(total, moved, share))

    def _at(self, parents: Tensor) -> tuple[Tensor, Tensor]:
        """Locations m and log scales ℓ given parents [..., r].  [..., d]"""
        free = self._unbounded(parents)
        return bounded(*free, self.bound, self.anchor)[:2]

    def _unbounded(self, parents: Tensor) -> tuple[Tensor, Tensor]:
        """c + b·w and s + a·w  [..., d]"""
        return self.location + parents @ self.by_location.mT, self.log_scale + parents @ self.by_scale.mT

    def _parents_from(self, reference: Tensor) -> Tensor:
        """Parents, one after another, from their y  [..., r]"""
        location, log_scale = self.location[self.parents], self.log_scale[self.parents]
        by_location, by_scale = self.by_location[self.parents], self.by_scale[self.parents]
        found: list[Tensor] = []
        bound, anchor = self.bound[self.parents], self.anchor[self.parents]
        for k in range(len(self.parents)):
            own, size, _ = bounded(location[..., k], log_scale[..., k], bound[k], anchor[k])
            value = own + size.exp() * reference[..., k]
            found.append(value)
            location = location + value[..., None] * by_location[:, k]
            log_scale = log_scale + value[..., None] * by_scale[:, k]
        return torch.stack(found, -1)

    def _moved(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """∂z/∂(s + a·w) and ∂z/∂(c + b·w) = κ where y stays, and scales e^ℓ  [..., d]"""
        free, log_free = self._unbounded(position[..., self.parents])
        location, log_scale, share = bounded(free, log_free, self.bound, self.anchor)
        moved = share * (position - location - 2 * (1 - share) * (free - self.anchor))
        return moved, share, log_scale.exp()

    def _through(self, total: Tensor, moved: Tensor, share: Tensor) -> Tensor:
        """What parents contribute by way of the coordinates that depend on them.  [..., r]"""
        return (total * share) @ self.by_location + (total * moved + share) @ self.by_scale


def bounded(
    location: Tensor, log_scale: Tensor, bound: Tensor, anchor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Location m and log scale ℓ of N(location, e^{2 log_scale}) · N(anchor, e^{2 bound}); and κ."""
    share = torch.sigmoid(2 * (bound - log_scale))
    size = -0.5 * torch.logaddexp(-2 * log_scale, -2 * bound)
    return share * location + (1 - share) * anchor, size, share


class NoncentredDensity(Density):
    """The density of y: log γ(z(y)) + log|det ∂z/∂y|."""

    def __init__(self, target: Density, coordinates: Noncentring) -> None:
        base = None if target.base is None else type(self)(target.base, coordinates)
        super().__init__(target.log_prob, base=base, dim=target.dim)
        self.target, self.coordinates = target, coordinates

    def _log_prob(self, position: Tensor) -> Tensor:
        place = self.coordinates.from_reference(position)
        return self.target._log_prob(place) + self.coordinates.log_det(place)

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() and position.requires_grad:
            return super().value_and_grad(position)
        place = self.coordinates.from_reference(position)
        log_prob, grad = self.target.value_and_grad(place)
        return log_prob + self.coordinates.log_det(place), self.coordinates.pull_back(place, grad)

    def to_reference(self, state: Phase) -> Phase:
        """A state of γ, with log γ and gradient known, as one of this density."""
        assert state.log_prob is not None and state.grad is not None
        position, grad = state.position, self.coordinates.pull_back(state.position, state.grad)
        log_prob = state.log_prob + self.coordinates.log_det(position)
        return Phase(self.coordinates.to_reference(position), state.momentum, log_prob, grad)

    def from_reference(self, states: Phase, start: Phase, accepted: Tensor) -> Phase:
        """The inverse, for successive states [K, ...] from `start` on.

        Where a proposal was rejected the state is the one before, not rounded again.
        """
        assert states.log_prob is not None and states.grad is not None
        position = self.coordinates.from_reference(states.position)
        log_prob = states.log_prob - self.coordinates.log_det(position)
        moved = Phase(position, None, log_prob, self.coordinates.push_forward(position, states.grad))
        last, found = start._replace(momentum=None), []
        for row, kept in zip(
            zip(*(part for part in moved if part is not None), strict=True), accepted, strict=True
        ):
            position, log_prob, grad = row
            last = Phase(position, None, log_prob, grad).where(kept, last)
            found.append(last)
        stacked = (torch.stack([state[i] for state in found]) for i in (0, 2, 3))  # type: ignore[misc]
        position, log_prob, grad = stacked
        return Phase(position, states.momentum, log_prob, grad)
