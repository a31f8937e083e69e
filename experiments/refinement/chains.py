"""The chains that are compared, as changes of `ChainConfig`; all have twelve forces but two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hmcvi.training.config import ChainConfig

Settings = Mapping[str, Any]

PAPER: Settings = {"num_hmc": 3, "num_leapfrog": 4, "partial": True, "mass": "nn", "initial_step_size": 0.1}
ENCODER: Settings = {"coordinates": "encoder", "partial": True, "mass": "identity", "initial_step_size": 0.2}
INFORMED: Settings = {**ENCODER, "reverse_sees": ["position", "force"]}
LONG: Settings = {"num_hmc": 12, "num_leapfrog": 1}
ANNEALED: Settings = {"kind": "annealed", **LONG, **ENCODER}

ABLATION: dict[str, Settings] = {
    "paper": PAPER,
    "paper-force": {**PAPER, "reverse_sees": ["position", "force"]},
    "paper-standardised": {**PAPER, "reverse_sees": ["position", "standardised"]},
    "paper-both": {**PAPER, "reverse_sees": ["position", "force", "standardised"]},
    "encoder": ENCODER,
    "informed": INFORMED,
    "informed-force-alone": {**INFORMED, "reverse_sees": ["force"]},
    "informed-mass": {**INFORMED, "mass": "nn"},
    "informed-step-per-dimension": {**INFORMED, "step_size": "dimension"},
    "informed-mixture": {**INFORMED, "reverse": "mixture"},
    "informed-fresh-momenta": {**INFORMED, "partial": False},
    "informed-1x12": {**INFORMED, "num_hmc": 1, "num_leapfrog": 12},
    "informed-6x2": {**INFORMED, "num_hmc": 6, "num_leapfrog": 2},
    "informed-12x1": {**INFORMED, **LONG},
    "informed-12x1-mass": {**INFORMED, **LONG, "mass": "nn"},
    "annealed": ANNEALED,
    "annealed-mass": {**ANNEALED, "mass": "nn"},
    "annealed-candidates": {**ANNEALED, "mass": "nn", "num_hmc": 10, "num_candidates": 8},
    "annealed-mass-14": {**ANNEALED, "mass": "nn", "num_hmc": 14},  # as much work as with candidates
    "annealed-mass-data": {**ANNEALED, "mass": "nn", "coordinates": "data", "initial_step_size": 0.1},
    "annealed-reversal": {**ANNEALED, "kind": "ldvi", "mass": "nn"},
    "annealed-informed": {**ANNEALED, "kind": "ldvi", "mass": "nn", "reverse_sees": ["position", "force"]},
}


def chain_config(settings: Settings) -> ChainConfig:
    """The configuration with these settings, the others as they come: networks have 200–200 units."""
    return replace(ChainConfig(), **{"num_hmc": 3, "num_leapfrog": 4, **settings})
