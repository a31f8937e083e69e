"""Bijections as steps: Hamiltonian dynamics, cooling, simplex maps, and any torch or Pyro transform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hmcvi.dynamics.energies import System
from hmcvi.dynamics.integrators import Splitting, leapfrog, three_stage, trajectory, two_stage
from hmcvi.flows.bijection import Bijection
from hmcvi.flows.builders import flow_chain
from hmcvi.flows.hamiltonian import Cool, Leapfrog
from hmcvi.flows.options import compile_trajectories, set_memory
from hmcvi.flows.simplex import AdditiveLogRatio, StickBreaking

if TYPE_CHECKING:
    from hmcvi.flows.augmented_softmax import AugmentedSoftmaxLaw

__all__ = [
    "AdditiveLogRatio",
    "AugmentedSoftmaxLaw",
    "Bijection",
    "Cool",
    "Leapfrog",
    "Splitting",
    "StickBreaking",
    "System",
    "compile_trajectories",
    "flow_chain",
    "leapfrog",
    "set_memory",
    "three_stage",
    "trajectory",
    "two_stage",
]


def __getattr__(name: str) -> Any:
    if name == "AugmentedSoftmaxLaw":  # when it is asked for, because Pyro takes its time
        from hmcvi.flows.augmented_softmax import AugmentedSoftmaxLaw

        return AugmentedSoftmaxLaw
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
