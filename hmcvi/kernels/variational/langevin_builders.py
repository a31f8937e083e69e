"""Methods of Langevin dynamics as lists of steps, as in `builders`."""

from __future__ import annotations

from collections.abc import Sequence

from hmcvi.chain import Chain, Step
from hmcvi.dynamics.energies import ANNEALED_ENERGY_ERROR
from hmcvi.flows.bijection import Bijection
from hmcvi.flows.builders import flow_chain, reversal
from hmcvi.flows.hamiltonian import Leapfrog
from hmcvi.internal.checks import at_least, choose, one_of
from hmcvi.kernels.variational.acceptance import Metropolis
from hmcvi.kernels.variational.annealing import Schedule, Temperature
from hmcvi.kernels.variational.builders import COORDINATES
from hmcvi.kernels.variational.langevin import Control, Langevin
from hmcvi.kernels.variational.mass import MASSES
from hmcvi.kernels.variational.momentum import DrawMomentum, DropMomentum
from hmcvi.kernels.variational.step_size import STEP_SIZES


def langevin_chain(
    dim: int,
    context_dim: int,
    num_steps: int = 12,
    control: str | None = None,
    control_sees: Sequence[str] = ("position",),
    mass: str = "identity",
    step_size: str = "global",
    hidden: Sequence[int] = (200, 200),
    initial_step_size: float = 0.01,
    coordinates: str = "data",
) -> Chain:
    """Langevin dynamics along a path from the base to the target: [Langevin(γ_{β_t})] × T, β_t learned.

    control: None is the unadjusted Langevin algorithm, reversed by itself [Thin et al. 2021]; "reverse" has a
    learned correction of the reverse drift, Monte Carlo diffusion [Doucet et al. 2022]; "both" adds it to the
    forward drift, with the opposite sign, controlled Monte Carlo diffusion [Vargas et al. 2024].
    control_sees: the inputs of its network, position, force, standardised.  The target must have a base.
    Other arguments: as of `hamiltonian_chain`.
    """
    at_least(1, dim=dim)
    at_least(0, context_dim=context_dim, num_steps=num_steps)
    one_of("control", control, (None, "reverse", "both"))
    masses = choose("mass", mass, MASSES)(dim, context_dim)
    sizes = choose("step_size", step_size, STEP_SIZES)(initial_step_size, dim, context_dim)
    learned = None if control is None else Control(dim, context_dim, hidden, control_sees)
    forward = learned if control == "both" else None
    schedule = Schedule(num_steps)
    return choose("coordinates", coordinates, COORDINATES)(
        Langevin(masses, sizes, Temperature(schedule, t), forward, learned, time=(t + 1) / num_steps)
        for t in range(num_steps)
    )


def stochastic_flow_chain(
    dim: int,
    context_dim: int,
    num_flows: int,
    num_steps: int = 1,
    flow: str = "coupling",
    move: str = "langevin",
    num_leapfrog: int = 1,
    accept: str | None = None,
    mass: str = "identity",
    step_size: str = "global",
    hidden: Sequence[int] = (200, 200),
    initial_step_size: float = 0.01,
    coordinates: str = "data",
    max_energy_error: float = ANNEALED_ENERGY_ERROR,
) -> Chain:
    """A stochastic normalizing flow: [two flow layers, num_steps moves at γ_{β_t}] × T, β_t learned.

    move: langevin, or hmc, which draws a momentum, follows it for num_leapfrog steps (with an acceptance if
    accept is "simple") and drops it.  Other arguments: as of `annealed_chain`.  [Wu, Köhler & Noé 2020]
    """
    at_least(0, num_flows=num_flows, num_steps=num_steps)
    one_of("move", move, ("langevin", "hmc"))
    one_of("accept", accept, (None, "simple") if move == "hmc" else (None,))
    masses = choose("mass", mass, MASSES)(dim, context_dim)
    sizes = choose("step_size", step_size, STEP_SIZES)(initial_step_size, dim, context_dim)
    schedule = Schedule(num_flows)
    steps: list[Step] = []
    for t in range(num_flows):
        beta = Temperature(schedule, t)
        steps += [flow_chain(dim, context_dim, 2, flow, hidden)]
        if flow != "planar":  # γ_β is a density of the variables in their own order
            steps += [Bijection(reversal(dim))]
        if move == "langevin":
            steps += [Langevin(masses, sizes, beta)] * num_steps
        else:
            trajectory = Leapfrog(masses, sizes, num_leapfrog, beta, max_energy_error=max_energy_error)
            move_on = trajectory if accept is None else Metropolis(trajectory)
            steps += [DrawMomentum(masses), move_on, DropMomentum(masses)] * num_steps
    return choose("coordinates", coordinates, COORDINATES)(steps)
