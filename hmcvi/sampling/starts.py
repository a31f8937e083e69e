"""Initial positions that nobody gave."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.adaptation.pathfinder import ELBO_SAMPLES, climb
from hmcvi.density import ONE_VECTOR, Density
from hmcvi.internal.random import standard_normal
from hmcvi.internal.seeds import generator as seeded

RADIUS = 2.0
TRIES = 300


@torch.no_grad()
def draw_starts(density: Density, num_chains: int, seed: int) -> Tensor:
    """Uniform in (−2, 2) on every axis, drawn again where the density is not finite.  [chains, d]

    In the default dtype, or in the one that log_prob needs.  [as in Stan]
    """
    dim = density.dim
    if dim is None:
        raise ValueError(
            "without init the dimension must be known: build Density(log_prob, dim=...) or "
            "Density(log_prob, shapes={name: shape}), or give init [chains, d]"
        )
    generator = seeded(seed, "initial positions")  # not that of the run

    def draw() -> Tensor:
        unit = torch.rand(num_chains, dim, generator=generator, dtype=torch.float64)
        return RADIUS * (2 * unit - 1)

    position = draw()
    position = position.to(_dtype(density, position))
    finite = _is_finite(density, position)
    for _ in range(TRIES):
        if finite.all():
            return position
        others = draw().to(position)
        usable = _is_finite(density, others)
        position = torch.where(finite[:, None], position, others)
        # chains that still lack one take those of chains that need none
        spare, lacking = others[finite & usable], (~finite & ~usable).nonzero()[:, 0]
        position[lacking[: len(spare)]] = spare[: len(lacking)]
        finite = _is_finite(density, position)
    raise ValueError(
        f"log_prob is not finite wherever in (−2, 2) {int((~finite).sum())} of {num_chains} chains were put, "
        f"{TRIES} times: give init [chains, d] where the density is positive"
    )


@torch.no_grad()
def pathfinder_starts(density: Density, num_chains: int, seed: int) -> Tensor:
    """A draw for each chain from the normal distribution that its own climb from `draw_starts` found best.

    Where it found none, or none of its draws has a density, the end of the climb.  [chains, d]
    """
    start, generator = draw_starts(density, num_chains, seed), seeded(seed, "pathfinder")
    paths = climb(density, start, generator)
    noise = standard_normal(start.expand(ELBO_SAMPLES, *start.shape), generator)
    position = paths.end
    for draw in paths.best.at(noise):
        usable = (paths.elbo > -torch.inf) & _is_finite(density, draw) & (position == paths.end).all(-1)
        position = draw.where(usable[:, None], position)
    return position


def _is_finite(density: Density, position: Tensor) -> Tensor:
    """Whether log γ and its gradient are; of densities without gradient, log γ alone.  [chains]"""
    value = density.log_prob(position).isfinite()
    try:
        return value & density.value_and_grad(position)[1].isfinite().all(-1)
    except RuntimeError:  # nothing to differentiate
        return value


def _dtype(density: Density, position: Tensor) -> torch.dtype:
    """The first of the default, double and single precision that log_prob returns for positions in it."""
    dtypes = dict.fromkeys((torch.get_default_dtype(), torch.float64, torch.float32))
    first: RuntimeError | None = None
    for dtype in dtypes:
        try:
            value = density.log_prob(position.to(dtype))
        except RuntimeError as error:  # such as a product with a matrix of another dtype
            first = first or error
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"log_prob must return a tensor, got {type(value).__name__}")
        if value.dtype == dtype:
            return dtype
    if first is not None:
        first.add_note(
            f"log_prob was called with positions {list(position.shape)}, a row for each chain; {ONE_VECTOR}"
        )
        raise first
    return torch.get_default_dtype()
