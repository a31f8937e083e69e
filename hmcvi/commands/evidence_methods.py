"""The estimators by the names they have on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hmcvi.density import Density
from hmcvi.evidence import (
    Evidence,
    ais,
    bidirectional,
    gibbs_tempering,
    importance,
    iwae,
    simulated_tempering,
    tempered_hmc,
)
from hmcvi.evidence.bases import Base

METHODS = ("ais", "bdmc", "ct-hmc", "gibbs-ct", "is", "iwae", "st")
IMPORTANCE_SAMPLES, TEMPERED_SAMPLES = 5000, 1000


@dataclass(frozen=True)
class Settings:
    method: str
    temperatures: int
    chains: int
    samples: int | None  # None: what is usual for the method
    schedule: str
    seed: int
    batch: int


def estimate(base: Base, target: Density, exact: Tensor | None, settings: Settings, seed: int) -> Evidence:
    """By the method that the settings name.  exact: draws of the target [*items, d], for bdmc."""
    s = settings
    options: dict[str, Any] = {"num_chains": s.chains, "seed": seed, "progress": False}
    path: dict[str, Any] = {"num_temperatures": s.temperatures, "schedule": s.schedule}
    drawn, mixed = s.samples or IMPORTANCE_SAMPLES, s.samples or TEMPERED_SAMPLES
    warmup: dict[str, Any] = {"num_warmup": mixed // 2}
    match s.method:
        case "ais":
            return ais(base, target, **path, **options)
        case "bdmc":
            assert exact is not None
            return bidirectional(base, target, exact, **path, **options)
        case "ct-hmc":
            return tempered_hmc(base, target, mixed, **warmup, **options)
        case "gibbs-ct":
            return gibbs_tempering(base, target, mixed, **warmup, **options)
        case "st":
            return simulated_tempering(base, target, mixed, **warmup, **path, **options)
        case "is":
            return importance(base, target, drawn, seed)
        case "iwae":
            return iwae(base, target, drawn, seed=seed)
    raise ValueError(f"method must be one of {', '.join(METHODS)}, got {s.method!r}")
