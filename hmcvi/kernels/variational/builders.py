"""Methods as lists of steps: each builder is the method's definition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from hmcvi.chain import Chain, Step
from hmcvi.dynamics.energies import ANNEALED_ENERGY_ERROR, MAX_ENERGY_ERROR
from hmcvi.flows.builders import flow_chain
from hmcvi.flows.coordinates import BaseCoordinates
from hmcvi.flows.hamiltonian import Cool, Leapfrog
from hmcvi.internal.checks import at_least, choose
from hmcvi.kernels.variational.acceptance import Metropolis, ReverseAcceptance
from hmcvi.kernels.variational.annealing import Schedule, Temperature
from hmcvi.kernels.variational.cooling import QuadraticCooling
from hmcvi.kernels.variational.mass import MASSES, IdentityMass
from hmcvi.kernels.variational.momentum import DrawMomentum, DropMomentum, Persistence, RefreshMomentum
from hmcvi.kernels.variational.resampling import Resample
from hmcvi.kernels.variational.reverse import MOMENTUM_MODELS, ReverseMomentum
from hmcvi.kernels.variational.step_size import STEP_SIZES

COORDINATES: dict[str, type[Chain]] = {"data": Chain, "encoder": BaseCoordinates}


def hamiltonian_chain(
    dim: int,
    context_dim: int,
    num_hmc: int = 3,
    num_leapfrog: int = 4,
    partial: bool | float = False,
    mass: str = "global",
    accept: str | None = None,
    step_size: str = "global",
    hidden: Sequence[int] = (200, 200),
    initial_step_size: float = 0.05,
    reverse: str = "gaussian",
    reverse_sees: Sequence[str] = ("position",),
    coordinates: str = "data",
    max_energy_error: float = MAX_ENERGY_ERROR,
) -> Chain:
    """Variational inference with HMC: every row of Table 1 of Wolf et al. 2016.

    α = 0:    [DrawMomentum, move, DropMomentum(r_V)] × T
    partial:  DrawMomentum, move, [RefreshMomentum(r_V), move] × (T−1), DropMomentum(r_final)

    with move = Leapfrog, or Metropolis(Leapfrog) if accept is "simple" or "nn".  (Refreshing the very
    first momentum would replace a draw from N(0, M) by another one; its two terms cancel.)
    partial: True learns α, a number fixes it.  mass: identity, global, nn, low-rank, full.
    step_size: global, dimension, nn.  reverse: the density of the reverse models, gaussian, mixture or flow.
    reverse_sees: what they see besides t, x and u, of position, force, standardised; ("position", "force")
    makes them informed.  coordinates: data (z itself), encoder (z standardised by the base of the target).
    max_energy_error: |ΔH| above which a trajectory has diverged and turns back, see `Leapfrog`.
    context_dim: size of x, 0 if there is none.
    """
    at_least(1, dim=dim, num_leapfrog=num_leapfrog)
    at_least(0, context_dim=context_dim, num_hmc=num_hmc)
    masses = choose("mass", mass, MASSES)(dim, context_dim)
    sizes = choose("step_size", step_size, STEP_SIZES)(initial_step_size, dim, context_dim)
    trajectory = Leapfrog(masses, sizes, num_leapfrog, max_energy_error=max_energy_error)
    move = _acceptance(accept, trajectory, dim, context_dim, hidden)
    frame = choose("coordinates", coordinates, COORDINATES)
    model = functools.partial(_reverse_momentum, dim, context_dim, hidden, reverse, reverse_sees)
    final = model(sees_refreshed=False)
    if num_hmc == 0:
        return Chain()
    if partial is False:
        return frame(
            step
            for t in range(1, num_hmc + 1)
            for step in (
                DrawMomentum(masses),
                move(t / num_hmc),
                DropMomentum(masses, final, time=(t + 1) / num_hmc),
            )
        )
    persistence = _persistence(partial)
    refreshed = model(sees_refreshed=True)
    steps: list[Step] = [DrawMomentum(masses), move(1 / num_hmc)]
    for t in range(2, num_hmc + 1):
        steps += [RefreshMomentum(masses, persistence, refreshed, time=t / num_hmc), move(t / num_hmc)]
    return frame([*steps, DropMomentum(masses, final, time=(num_hmc + 1) / num_hmc)])


def hvi_chain(
    dim: int,
    context_dim: int,
    num_hmc: int = 3,
    num_leapfrog: int = 4,
    hidden: Sequence[int] = (200, 200),
    initial_step_size: float = 0.05,
    reverse: str = "gaussian",
) -> Chain:
    """Hamiltonian variational inference: full refreshment, no acceptance.  [Salimans et al. 2015]"""
    return hamiltonian_chain(
        dim,
        context_dim,
        num_hmc,
        num_leapfrog,
        hidden=hidden,
        initial_step_size=initial_step_size,
        reverse=reverse,
    )


def hvae_chain(
    dim: int,
    num_leapfrog: int = 12,
    tempering: bool = True,
    initial_step_size: float = 0.05,
    initial_beta: float = 0.5,
) -> Chain:
    """The Hamiltonian VAE: heat the momentum, cool it along one trajectory, drop it under N(0, I).

    DrawMomentum, Cool(1/√β_0), [Leapfrog(1), Cool(√(β_{k−1}/β_k))] × K, DropMomentum.  [Caterini et al. 2018]
    """
    at_least(1, dim=dim, num_leapfrog=num_leapfrog)
    mass = IdentityMass()
    trajectory = Leapfrog(mass, STEP_SIZES["dimension"](initial_step_size, dim, 0), 1)
    if not tempering:
        return Chain([DrawMomentum(mass), *[trajectory] * num_leapfrog, DropMomentum(mass)])
    cooling = QuadraticCooling(num_leapfrog, initial_beta)
    steps: list[Step] = [DrawMomentum(mass), Cool(cooling.factor(0))]
    for k in range(1, num_leapfrog + 1):
        steps += [trajectory, Cool(cooling.factor(k))]
    return Chain([*steps, DropMomentum(mass)])


def annealed_chain(
    dim: int,
    context_dim: int,
    num_steps: int = 12,
    num_leapfrog: int = 1,
    partial: bool | float = True,
    mass: str = "global",
    accept: str | None = None,
    step_size: str = "global",
    initial_step_size: float = 0.05,
    reverse: str | None = None,
    reverse_sees: Sequence[str] = ("position",),
    hidden: Sequence[int] = (200, 200),
    coordinates: str = "data",
    max_energy_error: float = ANNEALED_ENERGY_ERROR,
    num_candidates: int = 1,
) -> Chain:
    """Differentiable annealed importance sampling: UHA with partial refreshment, DAIS without.

    DrawMomentum, Leapfrog(γ_{β_1}), [RefreshMomentum, Leapfrog(γ_{β_t})] × (T−1), DropMomentum, each
    momentum step reversed by its stationary distribution, or by a learned one (reverse="gaussian", …), which
    is LDVI; β_t learned.  The target must have a base.  Trajectories turn back at a smaller energy error than
    those of `hamiltonian_chain`: with 1000 a training from random weights can collapse, and any limit is
    exact.  num_candidates: of 2, 4, … draws of the base the chain starts from one, chosen at a temperature
    before the first; see `Resample`.  Other arguments: as there.
    [Geffner & Domke 2021; Zhang et al. 2021; Geffner & Domke 2023]
    """
    at_least(1, dim=dim, num_leapfrog=num_leapfrog)
    at_least(0, context_dim=context_dim, num_steps=num_steps)
    at_least(1, num_candidates=num_candidates)
    if accept not in (None, "simple"):
        raise ValueError(f"accept must be None or 'simple' in an annealed chain, got {accept!r}")
    frame = choose("coordinates", coordinates, COORDINATES)
    if num_steps == 0:
        return Chain()
    masses = choose("mass", mass, MASSES)(dim, context_dim)
    sizes = choose("step_size", step_size, STEP_SIZES)(initial_step_size, dim, context_dim)
    persistence = _persistence(partial)
    refreshed = final = None
    if reverse is not None:
        model = functools.partial(_reverse_momentum, dim, context_dim, hidden, reverse, reverse_sees)
        refreshed, final = model(sees_refreshed=True), model(sees_refreshed=False)
    first = int(num_candidates > 1)
    schedule = Schedule(first + num_steps)
    steps: list[Step] = [Resample(num_candidates, Temperature(schedule, 0))] if first else []
    steps.append(DrawMomentum(masses))
    for t in range(num_steps):
        beta = Temperature(schedule, first + t)
        trajectory = Leapfrog(masses, sizes, num_leapfrog, beta, max_energy_error=max_energy_error)
        move: Step = trajectory if accept is None else Metropolis(trajectory)
        refresh = RefreshMomentum(masses, persistence, refreshed, t / num_steps, residual=True)
        steps += [move] if t == 0 else [refresh, move]
    return frame([*steps, DropMomentum(masses, final, time=1.0)])


def flow_hmc_chain(
    dim: int,
    context_dim: int,
    num_flows: int,
    num_hmc: int,
    num_leapfrog: int,
    flow: str = "iaf",
    hidden: Sequence[int] = (200, 200),
    **options: object,
) -> Chain:
    """A normalizing flow, then HMC for what the flow misses of the posterior."""
    return Chain(
        [
            flow_chain(dim, context_dim, num_flows, flow, hidden),
            hamiltonian_chain(dim, context_dim, num_hmc, num_leapfrog, hidden=hidden, **options),  # type: ignore[arg-type]
        ]
    )


def _acceptance(
    accept: str | None, trajectory: Leapfrog, dim: int, context_dim: int, hidden: Sequence[int]
) -> Callable[[float], Step]:
    """The move at time t/T: the trajectory alone, or inside an acceptance step."""
    if accept is None:
        return lambda time: trajectory
    if accept == "simple":
        return lambda time: Metropolis(trajectory, time=time)
    if accept == "nn":
        reverse = ReverseAcceptance(dim, context_dim, hidden)
        return lambda time: Metropolis(trajectory, reverse, time)
    raise ValueError(f"accept must be None, 'simple' or 'nn', got {accept!r}")


def _reverse_momentum(
    dim: int,
    context_dim: int,
    hidden: Sequence[int],
    density: str,
    sees: Sequence[str],
    sees_refreshed: bool,
) -> ReverseMomentum:
    law = choose("reverse", density, MOMENTUM_MODELS)(dim, hidden)
    return ReverseMomentum(dim, context_dim, hidden, sees_refreshed, law, sees)


def _persistence(partial: bool | float) -> Persistence:
    """True: a learned α; a number (False is 0): a fixed one."""
    return Persistence() if partial is True else Persistence(float(partial), learned=False)
