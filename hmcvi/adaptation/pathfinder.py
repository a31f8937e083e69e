"""Pathfinder: the normal distribution of largest ELBO along a climb of log γ.

A quasi-Newton climb passes from the tails through where most of the mass is to the mode, and its estimates of
the inverse Hessian come for free.  At each iterate z they give the normal distribution

    N(z + H ∇log γ(z), H),    H = diag(α) + β γ βᵀ,

and the one of largest ELBO is kept.  Paths climb at once, each for itself.
[Zhang, Carpenter, Gelman & Vehtari 2022; Byrd, Nocedal & Schnabel 1994]
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.internal.random import standard_normal

HISTORY = 6  # pairs of steps and changes of the gradient that H is made of
MAX_STEPS = 500
MAX_HALVINGS = 40
SUFFICIENT = 1e-4  # share of the rise that the slope promises
ELBO_SAMPLES = 10


class LowRankNormals(NamedTuple):
    """N(μ, D A Aᵀ D), A = I + Q (L − I) Qᵀ, one for each path."""

    mean: Tensor  # μ  [..., d]
    scale: Tensor  # the diagonal of D  [..., d]
    basis: Tensor  # Q, orthonormal columns  [..., d, m]
    root: Tensor  # L, lower triangular  [..., m, m]

    def at(self, noise: Tensor) -> Tensor:
        """μ + D A n  [..., d]"""
        inner = self.basis.mT @ noise[..., None]
        return self.mean + self.scale * (noise + (self.basis @ (self.root @ inner - inner))[..., 0])

    def log_prob_at(self, noise: Tensor) -> Tensor:
        """log density at μ + D A n  [...]"""
        log_det = self.scale.log().sum(-1) + self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (noise.square().sum(-1) + noise.shape[-1] * math.log(2 * math.pi)) - log_det

    def factor(self) -> Tensor:
        """D A  [..., d, d]"""
        inner = self.root - torch.eye(self.root.shape[-1]).to(self.root)
        identity = torch.eye(self.scale.shape[-1]).to(self.scale)
        return self.scale[..., None] * (identity + self.basis @ inner @ self.basis.mT)

    def where(self, condition: Tensor, other: LowRankNormals) -> LowRankNormals:
        pairs = zip(self, other, strict=True)
        return LowRankNormals(*(_select(condition, mine, its) for mine, its in pairs))


class Paths(NamedTuple):
    """Where climbs ended, and the best normal distribution on the way of each."""

    end: Tensor  # [..., d]
    best: LowRankNormals
    elbo: Tensor  # [...], −inf where no normal distribution was found


@torch.no_grad()
def climb(
    density: Density, start: Tensor, generator: torch.Generator | None = None, max_steps: int = MAX_STEPS
) -> Paths:
    """Climb from `start` [..., d], where log γ must be finite.

    Steps are halved until log γ has risen.  A path that no longer rises by more than rounding forgets H,
    which may be that of a place far away, and ends when that has not helped.
    """
    state = Phase(start).evaluate(density)
    pairs = Pairs(start)
    best, elbo = pairs.normals(state), torch.full_like(_value(state), -torch.inf)
    is_climbing, last_stall = torch.ones_like(elbo, dtype=torch.bool), elbo
    for _ in range(max_steps):
        new, risen = _step(density, state, pairs, is_climbing)
        pairs.add(state, new)
        tolerance = 10 * torch.finfo(start.dtype).eps * (1 + _value(new).abs())
        stalled = is_climbing & ~(_value(new) - _value(state) > tolerance)
        is_climbing &= ~stalled | (_value(new) - last_stall > 1)
        last_stall = _value(new).where(stalled, last_stall)
        state = new
        normals = pairs.normals(state)
        found = _elbo(density, normals, generator)
        is_better = risen & (found > elbo)  # never for NaN
        best, elbo = normals.where(is_better, best), found.where(is_better, elbo)
        pairs.forget(stalled)
        if not is_climbing.any():
            break
    return Paths(state.position, best, elbo)


class Pairs:
    """The last steps s and falls of the gradient y of each path, of which H is made.

    Pairs without positive curvature sᵀy are zero and change nothing: H is one before there are any.
    """

    def __init__(self, like: Tensor) -> None:
        none = (
            torch.zeros_like(like),
            torch.zeros_like(like),
            torch.zeros_like(like[..., 0], dtype=torch.bool),
        )
        self._pairs = deque([none] * HISTORY, HISTORY)  # s, y, and whether they count
        self._alpha = torch.ones_like(like)

    def add(self, old: Phase, new: Phase) -> None:
        s, y = new.position - old.position, _grad(old) - _grad(new)
        curvature = (s * y).sum(-1)
        counts = curvature > torch.finfo(s.dtype).eps * s.norm(dim=-1) * y.norm(dim=-1)
        alpha = self._scaled(s, y)
        counts &= (alpha > 0).all(-1) & alpha.isfinite().all(-1)
        self._alpha = alpha.where(counts[..., None], self._alpha)
        self._pairs.append((s * counts[..., None], y.where(counts[..., None], 0.0), counts))

    def forget(self, which: Tensor) -> None:
        """Begin anew for these paths  [...]"""
        if which.any():
            kept = ~which[..., None]
            self._alpha = self._alpha.where(kept, 1.0)
            old = list(self._pairs)
            self._pairs.extend((s * kept, y * kept, counts & ~which) for s, y, counts in old)

    def _scaled(self, s: Tensor, y: Tensor) -> Tensor:
        """The diagonal of H that remembers units of the coordinates.  [Gilbert & Lemaréchal 1989]"""
        alpha = self._alpha
        a, b, c = ((x * z).sum(-1, keepdim=True) for x, z in ((y * alpha, y), (y, s), (s / alpha, s)))
        return 1 / (a / (b * alpha) + y.square() / b - a * s.square() / (b * c * alpha.square()))

    @property
    def exist(self) -> Tensor:
        """Whether a path has any  [...]"""
        return torch.stack([counts for _, _, counts in self._pairs]).any(0)

    def ascent(self, grad: Tensor) -> Tensor:
        """H ∇log γ  [..., d]"""
        left, right = self._factors()
        lengths = left.mT @ grad[..., None]
        return self._alpha * grad + (left @ (right @ lengths))[..., 0]

    def normals(self, state: Phase) -> LowRankNormals:
        left, right = self._factors()
        scale = self._alpha.sqrt()
        basis, triangle = torch.linalg.qr(left / scale[..., None])
        inner = triangle @ right @ triangle.mT
        identity = torch.eye(inner.shape[-1]).to(inner)
        root, failed = torch.linalg.cholesky_ex(identity + 0.5 * (inner + inner.mT))
        root = _select(failed == 0, root, identity.expand_as(root))
        return LowRankNormals(state.position + self.ascent(_grad(state)), scale, basis, root)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """β [..., d, 2 h] and γ [..., 2 h, 2 h]"""
        alpha = self._alpha[..., None]
        s, y = (torch.stack([pair[i] for pair in self._pairs], -1) for i in (0, 1))
        counts = torch.stack([pair[2] for pair in self._pairs], -1)
        products = s.mT @ y
        curvature = products.diagonal(dim1=-2, dim2=-1)
        triangle = products.triu(1) + torch.diag_embed(curvature.where(counts, 1.0))
        identity = torch.eye(len(self._pairs)).to(s).expand_as(triangle)
        inverse = torch.linalg.solve_triangular(triangle, identity, upper=True)
        corner = inverse.mT @ (torch.diag_embed(curvature) + y.mT @ (alpha * y)) @ inverse
        top = torch.cat([torch.zeros_like(corner), -inverse], -1)
        return torch.cat([alpha * y, s], -1), torch.cat([top, torch.cat([-inverse.mT, corner], -1)], -2)


def _step(density: Density, state: Phase, pairs: Pairs, is_climbing: Tensor) -> tuple[Phase, Tensor]:
    """The state higher up along H ∇log γ, and which paths have risen."""
    ascent = pairs.ascent(_grad(state))
    slope = (ascent * _grad(state)).sum(-1)
    # nothing is known of the scale of a first step but that its start may be far away
    share = torch.where(pairs.exist, 1.0, (1 / ascent.norm(dim=-1)).clamp(max=1.0))
    found, is_searching = state, is_climbing & (slope > 0) & slope.isfinite()
    risen = torch.zeros_like(is_climbing)
    for _ in range(MAX_HALVINGS):
        if not is_searching.any():
            break
        position = torch.addcmul(state.position, share[..., None], ascent)
        position = _select(is_searching, position, state.position)
        value, grad = density.finite_value_and_grad(position)
        is_found = is_searching & (value >= _value(state) + SUFFICIENT * share * slope)
        found = Phase(position, None, value, grad).where(is_found, found)
        risen, is_searching, share = risen | is_found, is_searching & ~is_found, share / 2
    return found, risen


def _elbo(density: Density, normals: LowRankNormals, generator: torch.Generator | None) -> Tensor:
    """mean(log γ − log q); −inf where a draw has no density.  [...]"""
    noise = standard_normal(normals.mean.expand(ELBO_SAMPLES, *normals.mean.shape), generator)
    value = density.log_prob(normals.at(noise))
    gaps = (value - normals.log_prob_at(noise)).mean(0)
    return gaps.where(gaps.isfinite(), -torch.inf)


def _select(condition: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Entries of one or the other, by a condition on their leading dimensions."""
    return torch.where(
        condition.reshape(condition.shape + (1,) * (first.ndim - condition.ndim)), first, second
    )


def _value(state: Phase) -> Tensor:
    assert state.log_prob is not None
    return state.log_prob


def _grad(state: Phase) -> Tensor:
    assert state.grad is not None
    return state.grad
