"""Bijections as steps: Hamiltonian dynamics, cooling, and any torch or Pyro transform."""

from hmcvi.flows.bijection import Bijection
from hmcvi.flows.builders import flow_chain
from hmcvi.flows.integrators import System, leapfrog
from hmcvi.flows.leapfrog import Cool, Leapfrog

__all__ = ["Bijection", "Cool", "Leapfrog", "System", "flow_chain", "leapfrog"]
