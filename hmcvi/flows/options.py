"""Memory and compilation of chains that are already built; a new chain takes them as arguments."""

from __future__ import annotations

from hmcvi.chain import MEMORY, Chain, Step
from hmcvi.dynamics.reversible import Reversible
from hmcvi.flows.hamiltonian import Leapfrog
from hmcvi.internal.checks import one_of
from hmcvi.internal.compile import Programs


def set_memory(chain: Step, memory: str) -> Step:
    """Set the memory of a chain, and of the chains within it, as `Chain(steps, memory=memory)` does."""
    one_of("memory", memory, MEMORY)
    for step in chain.modules():
        if isinstance(step, Leapfrog) and memory == "reversible":
            Reversible(step.integrator)  # refuses what cannot be followed back
    for part in _chains(chain):
        part.memory = memory
    return chain


def compile_trajectories(chain: Step) -> Step:
    """Compile the trajectories through which a chain is trained, as `Chain(steps, compile=True)` does.

    The first pass takes some ten seconds; a batch of another size is not compiled again.  Passes without
    gradients are not compiled.
    """
    programs = Programs()
    for part in _chains(chain):
        part.programs = programs
    return chain


def _chains(step: Step) -> list[Chain]:
    """The chains that a step is made of, itself included."""
    if not (found := [part for part in step.modules() if isinstance(part, Chain)]):
        raise ValueError(f"a chain is needed, got a single {type(step).__name__}: use Chain([step])")
    return found
