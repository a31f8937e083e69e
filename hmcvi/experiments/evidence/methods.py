"""The estimators by the names they have on the command line."""

from __future__ import annotations

from collections.abc import Callable
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

Estimate = Callable[[Base, Density, Tensor | None, Any, int], Evidence]
IMPORTANCE_SAMPLES, TEMPERED_SAMPLES = 5000, 1000


def _ais(base: Base, target: Density, exact: Tensor | None, s: Any, seed: int) -> Evidence:
    return ais(base, target, s.temperatures, s.chains, schedule=s.schedule, seed=seed, progress=False)


def _bdmc(base: Base, target: Density, exact: Tensor | None, s: Any, seed: int) -> Evidence:
    assert exact is not None
    return bidirectional(
        base, target, exact, s.temperatures, s.chains, schedule=s.schedule, seed=seed, progress=False
    )


def _is(base: Base, target: Density, exact: Tensor | None, s: Any, seed: int) -> Evidence:
    return importance(base, target, s.samples or IMPORTANCE_SAMPLES, seed=seed)


def _iwae(base: Base, target: Density, exact: Tensor | None, s: Any, seed: int) -> Evidence:
    return iwae(base, target, s.samples or IMPORTANCE_SAMPLES, seed=seed)


def _gibbs(base: Base, target: Density, exact: Tensor | None, s: Any, seed: int) -> Evidence:
    return gibbs_tempering(base, target, s.samples or TEMPERED_SAMPLES, s.chains, seed=seed, progress=False)


def _hmc(base: Base, target: Density, exact: Tensor | None, s: Any, seed: int) -> Evidence:
    return tempered_hmc(base, target, s.samples or TEMPERED_SAMPLES, s.chains, seed=seed, progress=False)


def _st(base: Base, target: Density, exact: Tensor | None, s: Any, seed: int) -> Evidence:
    return simulated_tempering(
        base,
        target,
        s.samples or TEMPERED_SAMPLES,
        s.chains,
        num_temperatures=s.temperatures,
        schedule=s.schedule,
        seed=seed,
        progress=False,
    )


METHODS: dict[str, Estimate] = {
    "ais": _ais,
    "bdmc": _bdmc,
    "gibbs-ct": _gibbs,
    "ct-hmc": _hmc,
    "st": _st,
    "is": _is,
    "iwae": _iwae,
}
