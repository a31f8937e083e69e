"""Variational inference refined by differentiable Hamiltonian Monte Carlo."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hmcvi import evidence, flows, kernels, models, objectives, sampling
from hmcvi.chain import Chain, Context, Phase, Step, Transition, Weights, weigh
from hmcvi.density import Density
from hmcvi.objectives import Bound, elbo, iwae
from hmcvi.sampling import Draws, SamplingWarning, Warmup, sample

if TYPE_CHECKING:
    from hmcvi import pyro

__version__ = "0.1.0"

__all__ = [
    "Bound",
    "Chain",
    "Context",
    "Density",
    "Draws",
    "Phase",
    "SamplingWarning",
    "Step",
    "Transition",
    "Warmup",
    "Weights",
    "elbo",
    "evidence",
    "flows",
    "iwae",
    "kernels",
    "models",
    "objectives",
    "pyro",
    "sample",
    "sampling",
    "weigh",
]


def __getattr__(name: str) -> Any:
    if name == "pyro":  # when it is asked for, because Pyro takes its time
        return importlib.import_module("hmcvi.pyro")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
