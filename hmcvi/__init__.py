"""Variational inference refined by differentiable Hamiltonian Monte Carlo."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmcvi import evidence, flows, kernels, models, objectives, pyro, sampling
    from hmcvi.chain import Chain, Context, Phase, Step, Transition, Weights, weigh
    from hmcvi.density import Density
    from hmcvi.objectives import Bound, elbo, iwae
    from hmcvi.sampling import Draws, SamplingWarning, Warmup, sample
    from hmcvi.training import load_run

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
    "load_run",
    "models",
    "objectives",
    "pyro",
    "sample",
    "sampling",
    "weigh",
]

# a name is imported when it is first asked for: the command line answers before torch is there
_HOMES = {
    "hmcvi.chain": ("Chain", "Context", "Phase", "Step", "Transition", "Weights", "weigh"),
    "hmcvi.density": ("Density",),
    "hmcvi.objectives": ("Bound", "elbo", "iwae"),
    "hmcvi.sampling": ("Draws", "SamplingWarning", "Warmup", "sample"),
    "hmcvi.training": ("load_run",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOME.get(name, f"{__name__}.{name}"))
    return getattr(module, name) if name in _HOME else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
