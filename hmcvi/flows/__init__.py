"""Bijections as steps: Hamiltonian dynamics, cooling, and any torch or Pyro transform."""

from hmcvi.flows.bijection import Bijection
from hmcvi.flows.builders import flow_chain
from hmcvi.flows.hamiltonian import Cool, Leapfrog, compile_trajectories
from hmcvi.flows.integrators import Splitting, System, leapfrog, three_stage, trajectory, two_stage

__all__ = [
    "Bijection",
    "Cool",
    "Leapfrog",
    "Splitting",
    "System",
    "compile_trajectories",
    "flow_chain",
    "leapfrog",
    "three_stage",
    "trajectory",
    "two_stage",
]
