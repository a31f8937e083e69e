"""Pilot runs: everything that annealing and tempering would have to be told, learned and then frozen.

Estimates made afterwards with other random numbers are as unbiased as if the settings had been given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.metrics import DiagonalMetric
from hmcvi.evidence.bases import Start
from hmcvi.evidence.result import log_mean_exp
from hmcvi.evidence.schedule import checked, interpolate, sigmoidal
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Info, Kernel

MakeKernel = Callable[[Density], Kernel]
SetStep = Callable[[Kernel, Tensor], Kernel]  # the kernel with its step size for β

ACCEPTANCE = 0.72  # aimed at by gradient kernels, the middle of 0.65–0.8
TEMPERATURES = 50
REPEATS = 4  # transitions at each temperature
FIRST = 40  # transitions at β = 0, to find the magnitude of the step size
FIRST_GAIN, GAIN = 4.0, 0.5  # of the step size by the error of the acceptance
CHAINS = 64  # at least, over all items
SMOOTHED = 3  # neighbours over whose step sizes the noise of the pilot is averaged
REFINED = 16  # pieces of an interval over which the length of the path is integrated

# Along a path: at the same number of gradients, more temperatures gain more than longer trajectories.
ANNEALED = {"num_steps": 1, "persistence": 0.6}
# Along a chain: lengths drawn at random, since a fixed one may bring a trajectory back to where it began.
MIXING = {"num_steps": 5, "jitter": 0.8}


def make(
    kernel: MakeKernel | None,
    start: Start,
    target: Density,
    default: Mapping[str, Any] = ANNEALED,
    compile: bool = False,
) -> Kernel:
    """The kernel asked for, on the way from base to target; else HMC whose mass is that of the base."""
    density = start.target(target)
    if kernel is not None:
        if compile:
            raise ValueError("compile is for the kernel that is made here: build yours with compile=True")
        return kernel(density)
    scale = start.scale()
    metric = None if scale is None else DiagonalMetric(-scale.log())
    return HMC(density, step_size=0.5, metric=metric, compile=compile, **default)


class StepSizes:
    """ε(β) = f(β) · (the step size given), log f linear between nodes, for kernels that have a step size."""

    def __init__(self, betas: Tensor, log_factors: Tensor) -> None:
        self.betas, self.log_factors = betas, log_factors

    def __call__(self, kernel: Kernel, beta: Tensor) -> Kernel:
        """The kernel with its steps for β: [] or one per chain."""
        log_factor = interpolate(beta.double(), self.betas, self.log_factors)
        return kernel.replace(step_size=kernel.step_size * log_factor.exp()[..., None])


def steps_as_given(kernel: Kernel, beta: Tensor) -> Kernel:
    """For kernels that have nothing to tune."""
    return kernel


@dataclass(frozen=True)
class Pilot:
    """What a pilot run saw at inverse temperatures β [M + 1]."""

    betas: Tensor
    step_sizes: SetStep
    spread: Tensor  # standard deviation of log γ − log q under γ_β  [M + 1]
    position: Tensor  # where its chains were  [M + 1, chains, *items, d]
    log_z: Tensor  # a first estimate  [*items]

    def schedule(self, num_temperatures: int) -> Tensor:
        """K temperatures with the same conditional ESS at every step.  [K + 1]

        A step of δ leaves the share 1 − δ² Var_β(log γ − log q) + O(δ³) of the samples effective, so steps of
        equal length ∫ sd_β(log γ − log q) dβ.  [Zhou, Johansen & Aston 2016]
        """
        fraction = torch.arange(REFINED, dtype=torch.float64) / REFINED
        fine = torch.lerp(self.betas[:-1, None], self.betas[1:, None], fraction).flatten()
        fine = torch.cat([fine, self.betas[-1:]])
        floor = 1e-3 * self.spread.max() + 1e-12
        spread = interpolate(fine, self.betas, self.spread.clamp(min=floor).log()).exp()
        pieces = fine.diff() * (spread[1:] + spread[:-1]) / 2
        length = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)])
        equal = torch.linspace(0, 1, num_temperatures + 1, dtype=torch.float64)
        betas = interpolate(equal * length[-1], length, fine)
        betas[0], betas[-1] = 0.0, 1.0
        return betas


def betas_of(
    schedule: str | Tensor, num_temperatures: int | None, pilot: Pilot | None, default: int
) -> Tensor:
    """The schedule that a user named or gave.  [K + 1]"""
    if isinstance(schedule, str):
        if schedule not in ("sigmoidal", "adaptive"):
            raise ValueError(f"schedule must be 'sigmoidal', 'adaptive' or a tensor, got {schedule!r}")
        count = default if num_temperatures is None else num_temperatures
        return sigmoidal(count) if schedule == "sigmoidal" or pilot is None else pilot.schedule(count)
    betas = checked(schedule)
    if num_temperatures is not None and num_temperatures != len(betas) - 1:
        raise ValueError(
            f"the schedule has {len(betas) - 1} steps, num_temperatures is {num_temperatures}: leave one out"
        )
    return betas


@torch.no_grad()
def run_pilot(start: Start, kernel: Kernel, generator: torch.Generator, num_chains: int = 2) -> Pilot:
    """Anneal a few chains over a coarse schedule, adapting their step size to what each temperature needs."""
    num_chains = max(num_chains, 4, -(-CHAINS // max(1, start.batch_shape.numel())))
    betas, search = sigmoidal(TEMPERATURES), StepSizeTracker(kernel)
    state = kernel.init(start.draw(num_chains, generator))
    log_weight = torch.zeros(())
    log_factors, spreads, positions = [], [], []
    for beta, step in zip(betas, [*betas.diff(), 0.0], strict=True):
        used, gaps = [], []
        for _ in range(FIRST if beta == 0 else REPEATS):
            used.append(search.log_factor)
            state, info = search.kernel().tempered_step(state, beta, generator)
            search.update(info)
            gaps.append(log_gap(start, kernel, state))
        log_weight = log_weight + step * gaps[-1]
        log_factors.append(sum(used[-REPEATS:]) / REPEATS)
        spreads.append(_spread(torch.stack(gaps[-REPEATS:])))
        positions.append(state.position)
    step_sizes: SetStep = steps_as_given
    if search.tunes:
        step_sizes = StepSizes(betas, _smooth(torch.tensor(log_factors, dtype=torch.float64)))
    return Pilot(betas, step_sizes, torch.stack(spreads), torch.stack(positions), log_mean_exp(log_weight))


class StepSizeTracker:
    """log ε ← log ε + g (acceptance − aim): follows the step size that is right while temperatures change.

    The gain g is halved, down to GAIN, whenever the acceptance crosses the aim.  [Kesten 1958]
    """

    def __init__(self, kernel: Kernel) -> None:
        self._given, self.tunes = kernel, "step_size" in kernel.tuned
        self._aim = ACCEPTANCE if kernel.uses_gradient else kernel.target_acceptance
        self.log_factor, self._gain, self._error = 0.0, FIRST_GAIN, 0.0

    def kernel(self) -> Kernel:
        """With the step size to use now."""
        if not self.tunes:
            return self._given
        return self._given.replace(step_size=self._given.step_size * math.exp(self.log_factor))

    def update(self, info: Info) -> None:
        if not self.tunes:
            return
        error = float(info["acceptance_rate"].mean()) - self._aim
        if error * self._error < 0:
            self._gain = max(GAIN, self._gain / 2)
        self._error = error
        self.log_factor += self._gain * error


def log_gap(start: Start, kernel: Kernel, state: Phase) -> Tensor:
    """log γ(z) − log q(z), in double precision.  [...]"""
    return (state.log_density(kernel.density) - start.density.finite_log_prob(state.position)).double()


def _smooth(values: Tensor) -> Tensor:
    """Averages over SMOOTHED neighbours to both sides, as far as there are as many.  [n] -> [n]"""
    index, smoothed = torch.arange(len(values)), []
    for i in range(len(values)):
        reach = min(SMOOTHED, i, len(values) - 1 - i)
        smoothed.append(values[(index - i).abs() <= reach].mean())
    return torch.stack(smoothed)


def _spread(gaps: Tensor) -> Tensor:
    """The standard deviation over chains of finite gaps.  [repeats, chains, *items] -> []"""
    finite = gaps.isfinite()
    gaps, count = gaps.where(finite, 0.0), finite.sum(1, keepdim=True).clamp(min=1)
    residual = (gaps - gaps.sum(1, keepdim=True) / count).where(finite, 0.0)
    return (residual.square().sum() / (finite.sum() - (count > 1).sum()).clamp(min=1)).sqrt().cpu()
