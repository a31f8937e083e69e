"""Bijections as steps: Hamiltonian dynamics, cooling, simplex maps, and any torch or Pyro transform."""

from hmcvi.flows.bijection import Bijection
from hmcvi.flows.builders import flow_chain
from hmcvi.flows.hamiltonian import Cool, Leapfrog, compile_trajectories
from hmcvi.flows.integrators import Splitting, System, leapfrog, three_stage, trajectory, two_stage
from hmcvi.flows.memory import set_memory
from hmcvi.flows.simplex import AdditiveLogRatio, AugmentedSoftmaxLaw, StickBreaking

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
