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
from hmcvi.evidence.fits import Fit
from hmcvi.evidence.path import MIXING, betas_of, make_kernel, pilot_of
from hmcvi.evidence.result import (
    Evidence,
    PerItem,
    effective_samples,
    log_mean_exp,
    mean_acceptance,
    warn_if_few,
)
from hmcvi.evidence.tempering import (
    Continuous,
    ExtendedDensity,
    Grid,
    Temperatures,
    TemperedDensity,
    Tempering,
)
from hmcvi.internal.checks import positive, whole
from hmcvi.internal.random import uniform
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Kernel, MakeKernel
from hmcvi.sampling.autocorrelation import mean_error
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
) -> Evidence:
    """Simulated tempering over β_0, …, β_K (K = 1000 if left out) with Rao–Blackwellised estimates.

    Other arguments as in `gibbs_tempering`.
    [Marinari & Parisi 1992; Carlson et al. 2016; Graham 2018, (2.74), (5.57)]
    """

    def grid(pilot: Pilot) -> Temperatures:
        return Grid(betas_of(schedule, num_temperatures, pilot, DEFAULT_TEMPERATURES))

    return _tempered(
        base, target, grid, num_samples, num_chains, num_warmup, kernel, log_zeta, seed, progress
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
) -> Evidence:
    q, num_chains = BaseDistribution(base), whole("num_chains", num_chains, 1)
    moving, generator = make_kernel(kernel, q, target, MIXING), q.generator(seed)
    pilot = pilot_of(q, moving, generator, num_chains)
    temperatures = make_temperatures(pilot)
    tempering = Tempering(moving, temperatures, log_zeta_of(base, pilot, log_zeta), pilot.step_sizes)
    state = tempering.init(_along_the_path(pilot, num_chains, generator))
    return _run(
        tempering, tempering.density, state, temperatures, num_samples, num_warmup, generator, progress
    )


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
    return _run(tuned, density.tempered, state, Continuous(), num_samples, 0, generator, progress)


@torch.no_grad()
def _run(
    kernel: Kernel,
    density: TemperedDensity,
    state: Any,
    temperatures: Temperatures,
    num_samples: int,
    num_warmup: int,
    generator: torch.Generator,
    progress: bool,
) -> Evidence:
    """Run the chains and estimate log Z from their draws of z."""
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
    return tempered_evidence(
        torch.stack(draws), torch.stack(deltas), density.log_zeta, temperatures, diagnostics
    )


def tempered_evidence(
    position: Tensor,
    delta: Tensor,
    log_zeta: float | Tensor,
    temperatures: Temperatures | None = None,
    diagnostics: dict[str, Tensor] | None = None,
) -> Evidence:
    """log Z = log ζ + log Σ_n w_1(z_n) − log Σ_n w_0(z_n), w_β(z) = p(β | z); expectations with weights w_1.

    position: [draws, chains, *items, d] of tempered chains, however they were run; delta: Δ(z), [draws,
    chains, *items]; temperatures: Continuous() if None.  The error is that of the mean of
    w_1 / w̄_1 − w_0 / w̄_0 over correlated draws.  [Graham 2018, (5.28), (5.36)]
    """
    log_w0, log_w1 = (Continuous() if temperatures is None else temperatures).log_ends(delta.double())
    flat0, flat1 = log_w0.flatten(0, 1), log_w1.flatten(0, 1)
    mean0, mean1 = log_mean_exp(flat0), log_mean_exp(flat1)
    error = mean_error((log_w1 - mean1).exp() - (log_w0 - mean0).exp())
    ess = effective_samples(flat1) / error.time.clamp(min=1)
    warn_if_few(ess, len(flat1))
    per_item = PerItem(torch.as_tensor(log_zeta) + mean1 - mean0, error.variance.sqrt(), ess)
    return Evidence.of(per_item, diagnostics or {}, position.flatten(0, 1), flat1)


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
