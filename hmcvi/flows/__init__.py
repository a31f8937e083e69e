"""Bijections as steps: Hamiltonian dynamics, cooling, simplex maps, and any torch or Pyro transform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hmcvi.dynamics.energies import System
from hmcvi.dynamics.forces import ForcedDensity, HalfProducts, Subset, Surrogate
from hmcvi.dynamics.integrators import Splitting, leapfrog, three_stage, trajectory, two_stage
from hmcvi.flows.bijection import Bijection
from hmcvi.flows.builders import flow_chain
from hmcvi.flows.coordinates import BaseCoordinates
from hmcvi.flows.force import ApproximateForce, with_force
from hmcvi.flows.hamiltonian import Cool, Leapfrog
from hmcvi.flows.options import compile_trajectories, set_memory
from hmcvi.flows.simplex import AdditiveLogRatio, StickBreaking
from hmcvi.internal.moved import moved

if TYPE_CHECKING:
    from hmcvi.flows.augmented_softmax import AugmentedSoftmaxDistribution

__all__ = [
    "AdditiveLogRatio",
    "ApproximateForce",
    "AugmentedSoftmaxDistribution",
    "BaseCoordinates",
    "Bijection",
    "Cool",
    "ForcedDensity",
    "HalfProducts",
    "Leapfrog",
    "Splitting",
    "StickBreaking",
    "Subset",
    "Surrogate",
    "System",
    "compile_trajectories",
    "flow_chain",
    "leapfrog",
    "set_memory",
    "three_stage",
    "trajectory",
    "two_stage",
    "with_force",
]


# imported when it is asked for, because Pyro takes its time; with its name in the first release
ON_REQUEST = {
    "AugmentedSoftmaxDistribution": "hmcvi.flows.augmented_softmax",
    "AugmentedSoftmaxLaw": "hmcvi.flows.augmented_softmax:AugmentedSoftmaxDistribution",
}


def __getattr__(name: str) -> Any:
    return moved(__name__, name, ON_REQUEST)
