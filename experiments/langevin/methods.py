"""The methods that are compared, and what the authors' own code gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hmcvi.chain import Chain
from hmcvi.kernels import annealed_chain, langevin_chain

HIDDEN = (64, 64)


class Method(NamedTuple):
    builder: Callable[..., Chain]
    options: dict[str, Any]
    full_base: bool = False  # a Gaussian base with all covariances, in place of a diagonal one

    def chain(self, dim: int, num_bridges: int) -> Chain:
        return self.builder(dim, 0, num_bridges, **self.options)


def langevin(**options: Any) -> tuple[Callable[..., Chain], dict[str, Any]]:
    return langevin_chain, {"initial_step_size": 0.01, "hidden": HIDDEN, **options}


def annealed(**options: Any) -> tuple[Callable[..., Chain], dict[str, Any]]:
    return annealed_chain, {"initial_step_size": 0.1, "mass": "identity", "hidden": HIDDEN, **options}


METHODS: dict[str, Method] = {
    "ULA": Method(*langevin()),
    "MCD": Method(*langevin(control="reverse")),
    "CMCD": Method(*langevin(control="both")),
    "UHA": Method(*annealed()),
    "LDVI": Method(*annealed(reverse="gaussian")),
    "CMCD, full mass": Method(*langevin(control="both", mass="full")),
    "LDVI, full mass": Method(*annealed(reverse="gaussian", mass="full")),
    "CMCD, full base": Method(
        *langevin(control="both", coordinates="encoder", initial_step_size=0.03), full_base=True
    ),
    "LDVI, full base": Method(
        *annealed(reverse="gaussian", coordinates="encoder", initial_step_size=0.2), full_base=True
    ),
}

# ELBO on ionosphere with K bridges, by the code of Geffner & Domke 2023, 15,000 + 15,000 steps of 5 particles
AUTHORS_CODE: dict[int, dict[str, float]] = {
    8: {"ULA": -116.71, "MCD": -115.24, "UHA": -115.92, "LDVI": -115.29},
    16: {"ULA": -116.17, "MCD": -114.10, "UHA": -114.64, "LDVI": -113.83},
}
