"""Methods as lists of steps: each builder is the method's definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hmcvi.chain import Chain, Step
from hmcvi.flows.bijection import Bijection
from hmcvi.flows.builders import flow_chain, reversal
from hmcvi.flows.hamiltonian import Cool, Leapfrog
from hmcvi.internal.checks import at_least, one_of
from hmcvi.kernels.variational.acceptance import Metropolis, ReverseAcceptance
from hmcvi.kernels.variational.annealing import Schedule, Temperature
from hmcvi.kernels.variational.cooling import QuadraticCooling
from hmcvi.kernels.variational.langevin import Control, Langevin
from hmcvi.kernels.variational.mass import MASSES, IdentityMass
from hmcvi.kernels.variational.momentum import DrawMomentum, DropMomentum, Persistence, RefreshMomentum
from hmcvi.kernels.variational.reverse import MOMENTUM_MODELS, ReverseMomentum
from hmcvi.kernels.variational.step_size import STEP_SIZES

T = TypeVar("T")


def hamiltonian_chain(
    dim: int,
    context_dim: int,
    num_hmc: int,
    num_leapfrog: int,
    partial: bool | float = False,
    mass: str = "global",
    accept: str | None = None,
    step_size: str = "global",
    hidden: Sequence[int] = (200, 200),
    initial_step_size: float = 0.05,
    reverse: str = "gaussian",
) -> Chain:
    """Variational inference with HMC: every row of Table 1 of Wolf et al. 2016.

    α = 0:    [DrawMomentum, move, DropMomentum(r_V)] × T
    partial:  DrawMomentum, move, [RefreshMomentum(r_V), move] × (T−1), DropMomentum(r_final)

    with move = Leapfrog, or Metropolis(Leapfrog) if accept is "simple" or "nn".  (Refreshing the very
    first momentum would replace a draw from N(0, M) by another one; its two terms cancel.)
    partial: True learns α, a number fixes it.  mass: identity, global, nn, low-rank, full.
    step_size: global, dimension, nn.  reverse: the density of the reverse models, gaussian, mixture or flow.
    context_dim: size of x, 0 if there is none.
    """
    at_least(1, dim=dim, num_leapfrog=num_leapfrog)
    at_least(0, context_dim=context_dim, num_hmc=num_hmc)
    masses = _choose("mass", mass, MASSES)(dim, context_dim)
    trajectory = Leapfrog(
        masses, _choose("step_size", step_size, STEP_SIZES)(initial_step_size, dim, context_dim), num_leapfrog
    )
    move = _acceptance(accept, trajectory, dim, context_dim, hidden)
    momentum_model = _choose("reverse", reverse, MOMENTUM_MODELS)
    final = ReverseMomentum(dim, context_dim, hidden, law=momentum_model(dim, hidden))
    if num_hmc == 0:
        return Chain()
    if partial is False:
        return Chain(
            step
            for t in range(1, num_hmc + 1)
            for step in (
                DrawMomentum(masses),
                move(t / num_hmc),
                DropMomentum(masses, final, time=(t + 1) / num_hmc),
            )
        )
    persistence = _persistence(partial)
    refreshed = ReverseMomentum(
        dim, context_dim, hidden, sees_refreshed=True, law=momentum_model(dim, hidden)
    )
    steps: list[Step] = [DrawMomentum(masses), move(1 / num_hmc)]
    for t in range(2, num_hmc + 1):
        steps += [RefreshMomentum(masses, persistence, refreshed, time=t / num_hmc), move(t / num_hmc)]
    return Chain([*steps, DropMomentum(masses, final, time=(num_hmc + 1) / num_hmc)])


def hvi_chain(
    dim: int,
    context_dim: int,
    num_hmc: int,
    num_leapfrog: int,
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
    num_leapfrog: int,
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
    num_steps: int,
    num_leapfrog: int = 1,
    partial: bool | float = True,
    mass: str = "global",
    accept: str | None = None,
    step_size: str = "global",
    initial_step_size: float = 0.05,
) -> Chain:
    """Differentiable annealed importance sampling: UHA with partial refreshment, DAIS without.

    DrawMomentum, Leapfrog(γ_{β_1}), [RefreshMomentum, Leapfrog(γ_{β_t})] × (T−1), DropMomentum, each
    momentum step reversed by its stationary distribution; β_t learned.  The target must have a base.
    [Geffner & Domke 2021; Zhang et al. 2021]
    """
    at_least(1, dim=dim, num_leapfrog=num_leapfrog)
    at_least(0, context_dim=context_dim, num_steps=num_steps)
    if accept not in (None, "simple"):
        raise ValueError(f"accept must be None or 'simple' in an annealed chain, got {accept!r}")
    if num_steps == 0:
        return Chain()
    masses = _choose("mass", mass, MASSES)(dim, context_dim)
    sizes = _choose("step_size", step_size, STEP_SIZES)(initial_step_size, dim, context_dim)
    persistence = _persistence(partial)
    schedule = Schedule(num_steps)
    steps: list[Step] = [DrawMomentum(masses)]
    for t in range(num_steps):
        trajectory = Leapfrog(masses, sizes, num_leapfrog, Temperature(schedule, t))
        move: Step = trajectory if accept is None else Metropolis(trajectory)
        steps += [move] if t == 0 else [RefreshMomentum(masses, persistence), move]
    return Chain([*steps, DropMomentum(masses)])


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


def langevin_chain(
    dim: int,
    context_dim: int,
    num_steps: int,
    control: str | None = None,
    mass: str = "identity",
    step_size: str = "global",
    hidden: Sequence[int] = (200, 200),
    initial_step_size: float = 0.01,
) -> Chain:
    """Langevin dynamics along a path from the base to the target: [Langevin(γ_{β_t})] × T, β_t learned.

    control: None is the unadjusted Langevin algorithm, reversed by itself [Thin et al. 2021]; "reverse" has a
    learned correction of the reverse drift, Monte Carlo diffusion [Doucet et al. 2022]; "both" adds it to the
    forward drift, with the opposite sign, controlled Monte Carlo diffusion [Vargas et al. 2024].
    """
    at_least(1, dim=dim)
    at_least(0, context_dim=context_dim, num_steps=num_steps)
    one_of("control", control, (None, "reverse", "both"))
    masses = _choose("mass", mass, MASSES)(dim, context_dim)
    sizes = _choose("step_size", step_size, STEP_SIZES)(initial_step_size, dim, context_dim)
    learned = None if control is None else Control(dim, context_dim, hidden)
    forward = learned if control == "both" else None
    schedule = Schedule(num_steps)
    return Chain(
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
) -> Chain:
    """A stochastic normalizing flow: [two flow layers, num_steps moves at γ_{β_t}] × T, β_t learned.

    move: langevin, or hmc, which draws a momentum, follows it for num_leapfrog steps (with an acceptance if
    accept is "simple") and drops it.  The target must have a base.  [Wu, Köhler & Noé 2020]
    """
    at_least(0, num_flows=num_flows, num_steps=num_steps)
    one_of("move", move, ("langevin", "hmc"))
    one_of("accept", accept, (None, "simple") if move == "hmc" else (None,))
    masses = _choose("mass", mass, MASSES)(dim, context_dim)
    sizes = _choose("step_size", step_size, STEP_SIZES)(initial_step_size, dim, context_dim)
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
            trajectory = Leapfrog(masses, sizes, num_leapfrog, beta)
            move_on = trajectory if accept is None else Metropolis(trajectory)
            steps += [DrawMomentum(masses), move_on, DropMomentum(masses)] * num_steps
    return Chain(steps)


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


def _persistence(partial: bool | float) -> Persistence:
    """True: a learned α; a number (False is 0): a fixed one."""
    return Persistence() if partial is True else Persistence(float(partial), learned=False)


def _choose(name: str, choice: str, options: Mapping[str, T]) -> T:
    one_of(name, choice, options)
    return options[choice]
