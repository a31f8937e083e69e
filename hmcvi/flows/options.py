"""How a chain that is already built remembers and runs; a new one is told so when it is built."""

from __future__ import annotations

from hmcvi.chain import MEMORY, Chain, Step
from hmcvi.dynamics.reversible import Reversible
from hmcvi.flows.hamiltonian import Leapfrog
from hmcvi.internal.compile import Programs


def set_memory(chain: Step, memory: str) -> Step:
    """Have a chain, and the chains it is made of, remember like `Chain(steps, memory=memory)`."""
    if memory not in MEMORY:
        raise ValueError(f"memory must be one of {', '.join(MEMORY)}, got {memory!r}")
    for step in chain.modules():
        if isinstance(step, Leapfrog) and memory == "reversible":
            Reversible(step.integrator)  # refuses what cannot be followed back
        if isinstance(step, Chain):
            step.memory = memory
    return chain


def compile_trajectories(chain: Step) -> Step:
    """Have a chain train through compiled trajectories like `Chain(steps, compile=True)`.

    The first pass takes some ten seconds, another size of the batch none.  Passes without gradients stay as
    they are.
    """
    programs = Programs()
    for step in chain.modules():
        if isinstance(step, Chain):
            step.programs = programs
    return chain
