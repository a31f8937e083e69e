"""Evidence from tempered chains, each draw of which counts for both ends of the path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hmcvi.adaptation.pilot import Pilot
from hmcvi.adaptation.step_size import ANNEALED_ACCEPTANCE
from hmcvi.adaptation.warmup import Warmup, warm_up
from hmcvi.density import Density
from hmcvi.dynamics.metrics import DiagonalMetric
from hmcvi.evidence.bases import Base, BaseDistribution
from hmcvi.evidence.ends import compared_with_base, ratio_of_ends, tempered_evidence
from hmcvi.evidence.fits import Fit
from hmcvi.evidence.path import MIXING, betas_of, make_kernel, pilot_of
from hmcvi.evidence.result import Evidence, mean_acceptance
from hmcvi.evidence.tempering import (
    Continuous,
    ExtendedDensity,
    Grid,
    Neighbours,
    Temperatures,
    TemperedDensity,
    Tempering,
)
from hmcvi.internal.checks import choose, one_of, positive, whole
from hmcvi.internal.random import uniform
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Kernel, MakeKernel
from hmcvi.sampling.progress import KernelProgress

DEFAULT_TEMPERATURES = 1000


def gibbs_tempering(
    base: Base,
    target: Density,
    num_samples: int = 1000,
    num_chains: int = 4,
    num_warmup: int = 200,
    kernel: MakeKernel | None = None,
    log_zeta: float | Tensor | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Evidence:
    """Gibbs continuous tempering: z | β by the kernel, β | z exactly.  [Graham 2018, algorithm 14]

    base: as in `ais`.  kernel: density -> Kernel; if None, HMC of one to nine steps with the variances of the
        base as its mass.  A pilot run chooses its step size as a function of β.
    log_zeta: log ζ, a guess of log Z, a number or one per item; None: the base's own if it is a fit, else a
        first estimate from the pilot run.
    num_samples: draws of each chain, after num_warmup that are discarded.
    """
    return _tempered(
        base,
        target,
        lambda _: Continuous(),
        num_samples,
        num_chains,
        num_warmup,
        kernel,
        log_zeta,
        seed,
        progress,
    )


def simulated_tempering(
    base: Base,
    target: Density,
    num_samples: int = 1000,
    num_chains: int = 4,
    num_warmup: int = 200,
    num_temperatures: int | None = None,
    schedule: str | Tensor = "sigmoidal",
    kernel: MakeKernel | None = None,
    log_zeta: float | Tensor | None = None,
    seed: int = 0,
    progress: bool = True,
    weights: str = "guess",
    estimate: str = "all",
    moves: str = "all",
) -> Evidence:
    """Simulated tempering over β_0, …, β_K (K = 1000 if left out).

    weights: of the temperatures, ζ^{−β_k} ("guess"), or these times what the chains learn of them in warm-up
        and keep from then on ("adapted").
    estimate: from p(β | z) at both ends for all draws ("all", Rao–Blackwellised), or by counting the draws
        that are there ("counts"), which has a larger error and needs some.
    moves: of β, to any temperature by an exact draw ("all"), or to the next one ("neighbours").
    Other arguments as in `gibbs_tempering`.
    [Marinari & Parisi 1992; Carlson et al. 2016; Tan 2017; Graham 2018, (2.72), (2.74), (5.57)]
    """
    one_of("weights", weights, ("guess", "adapted"))
    one_of("estimate", estimate, ("all", "counts"))
    kind = choose("moves", moves, {"all": Grid, "neighbours": Neighbours})

    def grid(pilot: Pilot) -> Temperatures:
        return kind(betas_of(schedule, num_temperatures, pilot, DEFAULT_TEMPERATURES))

    return _tempered(
        base,
        target,
        grid,
        num_samples,
        num_chains,
        num_warmup,
        kernel,
        log_zeta,
        seed,
        progress,
        adapt=weights == "adapted",
        count=estimate == "counts",
    )


def _tempered(
    base: Base,
    target: Density,
    make_temperatures: Callable[[Pilot], Temperatures],
    num_samples: int,
    num_chains: int,
    num_warmup: int,
    kernel: MakeKernel | None,
    log_zeta: float | Tensor | None,
    seed: int,
    progress: bool,
    adapt: bool = False,
    count: bool = False,
) -> Evidence:
    q, num_chains = BaseDistribution(base), whole("num_chains", num_chains, 1)
    moving, generator = make_kernel(kernel, q, target, MIXING), q.generator(seed)
    pilot = pilot_of(q, moving, generator, num_chains)
    log_zeta = log_zeta_of(base, pilot, log_zeta)
    tempering = Tempering(moving, make_temperatures(pilot), log_zeta, pilot.step_sizes)
    state = tempering.init(_along_the_path(pilot, num_chains, generator))
    num_warmup = whole("num_warmup", num_warmup, 0)
    if adapt:
        tempering, state = _learn_weights(tempering, state, num_warmup, generator, progress)
        num_warmup = 0
    return _run(
        q,
        tempering,
        tempering.density,
        state,
        tempering.temperatures,
        num_samples,
        num_warmup,
        generator,
        progress,
        count,
    )


@torch.no_grad()
def _learn_weights(
    tempering: Tempering, state: Any, num_warmup: int, generator: torch.Generator, progress: bool
) -> tuple[Tempering, Any]:
    """Run the chains with weights that change after each transition, the same for all chains of an item."""
    with KernelProgress("weights", num_warmup, progress) as display:
        for index in range(num_warmup):
            state, info = tempering.step(state, generator)
            display.advance(tempering, info)
            assert isinstance(tempering.temperatures, Grid)
            learned = tempering.temperatures.learned(info["delta"], index + 1)
            tempering = tempering.replace(temperatures=learned)
    return tempering, state


def tempered_hmc(
    base: Base,
    target: Density,
    num_samples: int = 1000,
    num_chains: int = 4,
    num_warmup: int = 500,
    num_steps: int = 10,
    mass: float = 1.0,
    scale: Tensor | None = None,
    log_zeta: float | Tensor | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Evidence:
    """Continuously tempered HMC: trajectories of z and u, β = σ(u), together, num_steps long on average.

    mass: m of u.  scale: s of z [d] or [*items, d], whose masses are 1/s²; that of the base if left out.
    The step size is tuned over num_warmup transitions.
    Other arguments as in `gibbs_tempering`.  [Graham & Storkey 2017; Graham 2018, algorithm 15]
    """
    q, num_chains = BaseDistribution(base), whole("num_chains", num_chains, 1)
    generator = q.generator(seed)
    pilot = pilot_of(q, make_kernel(None, q, target), generator, num_chains)
    density = ExtendedDensity(base, target, log_zeta_of(base, pilot, log_zeta))
    position = _along_the_path(pilot, num_chains, generator)
    position[..., -1] = position[..., -1].clamp(0.02, 0.98).logit()
    scale, log_scale = q.scale() if scale is None else scale, torch.zeros_like(position[0])
    if scale is not None:
        log_scale[..., :-1] = -positive(scale, "scale").log()
    log_scale[..., -1] = 0.5 * positive(mass, "mass").log()
    hmc = HMC(density, 0.1, num_steps, DiagonalMetric(log_scale), jitter=MIXING["jitter"])
    with KernelProgress("warm-up", num_warmup, progress) as display:
        warmup = Warmup(target_acceptance=ANNEALED_ACCEPTANCE, mass="fixed")
        tuned, state = warm_up(hmc, hmc.init(position), num_warmup, generator, warmup, display.advance)
    return _run(q, tuned, density.tempered, state, Continuous(), num_samples, 0, generator, progress)


@torch.no_grad()
def _run(
    q: BaseDistribution,
    kernel: Kernel,
    density: TemperedDensity,
    state: Any,
    temperatures: Temperatures,
    num_samples: int,
    num_warmup: int,
    generator: torch.Generator,
    progress: bool,
    count: bool = False,
) -> Evidence:
    """Run the chains and estimate log Z from their draws of z, or by counts of their β."""
    num_samples, num_warmup = whole("num_samples", num_samples, 4), whole("num_warmup", num_warmup, 0)
    draws, deltas, last, rates = [], [], [], []
    with KernelProgress("tempering", num_warmup + num_samples, progress) as display:
        for index in range(num_warmup + num_samples):
            state, info = kernel.step(state, generator)
            display.advance(kernel, info)
            if index < num_warmup:
                continue
            draws.append(state.position[..., :-1])
            deltas.append(info["delta"] if "delta" in info else density.delta(draws[-1]))
            last.append(state.position[..., -1])
            rates.append(mean_acceptance(info))
    beta = torch.stack(last)  # or u, where the kernel moves that
    diagnostics = {
        "beta": beta.sigmoid() if isinstance(kernel.density, ExtendedDensity) else beta,
        "acceptance_rate": torch.stack(rates).mean(),
        "log_zeta": density.log_zeta,
    }
    position, delta = torch.stack(draws), torch.stack(deltas)
    if count:
        assert isinstance(temperatures, Grid)
        ends = temperatures.log_visits(beta.double())
        evidence = ratio_of_ends(position, *ends, density.log_zeta, diagnostics)
    else:
        evidence = tempered_evidence(position, delta, density.log_zeta, temperatures, diagnostics)
    return compared_with_base(evidence, q)


def log_zeta_of(base: Base, pilot: Pilot, given: float | Tensor | None) -> Tensor:
    """log ζ: as given, else that of a fitted base, else the estimate of the pilot run."""
    if given is None:
        return base.log_zeta if isinstance(base, Fit) else pilot.log_z
    return torch.as_tensor(given)


def _along_the_path(pilot: Pilot, num_chains: int, generator: torch.Generator) -> Tensor:
    """Initial states (z, β): a position of the pilot run at a random temperature for each chain.

    [num_chains, *items, d + 1]
    """
    position = pilot.position[:, :num_chains]  # [M + 1, chains, *items, d]
    index = (uniform(position[0, ..., 0], generator) * len(position)).long()
    chosen = torch.take_along_dim(position, index[None, ..., None], 0)[0]
    beta = pilot.betas.to(position)[index]
    return torch.cat([chosen, beta[..., None]], -1)
