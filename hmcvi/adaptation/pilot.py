"""Pilot runs: the settings of annealing and tempering, learned and then frozen.

Estimates made afterwards with other random numbers are as unbiased as if the settings had been given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hmcvi.adaptation.schedule import interpolate, sigmoidal
from hmcvi.adaptation.step_size import StepSizeTracker, step_size_of, with_step_size
from hmcvi.chain import Phase
from hmcvi.kernels.mcmc.kernel import Kernel
from hmcvi.kernels.mcmc.retarget import tempered

SetStep = Callable[[Kernel, Tensor], Kernel]  # the kernel with its step size for β

TEMPERATURES = 50
REPEATS = 4  # transitions at each temperature
FIRST = 40  # transitions at β = 0, to find the magnitude of the step size
CHAINS = 64  # at least, over all items
SMOOTHED = 3  # neighbours over which noisy step sizes are averaged
REFINED = 16  # pieces of an interval over which the length of the path is integrated


class StepSizes:
    """ε(β) = f(β) · (the step size given), log f linear between nodes, for kernels that have a step size."""

    def __init__(self, betas: Tensor, log_factors: Tensor) -> None:
        self.betas, self.log_factors = betas, log_factors

    def __call__(self, kernel: Kernel, beta: Tensor) -> Kernel:
        """The kernel with its steps for β: [] or one per chain."""
        log_factor = interpolate(beta.double(), self.betas, self.log_factors)
        return with_step_size(kernel, step_size_of(kernel) * log_factor.exp()[..., None])


def steps_as_given(kernel: Kernel, beta: Tensor) -> Kernel:
    """The kernel as it is, for kernels without a step size to tune."""
    return kernel


@dataclass(frozen=True)
class Pilot:
    """What a pilot run learned at inverse temperatures β [M + 1]."""

    betas: Tensor
    step_sizes: SetStep
    spread: Tensor  # standard deviation of log γ − log q under γ_β  [M + 1]
    position: Tensor  # where its chains were  [M + 1, chains, *items, d]
    log_z: Tensor  # a first estimate  [*items]

    def schedule(self, num_temperatures: int) -> Tensor:
        """K temperatures with the same conditional ESS at every step.  [K + 1]

        A step of δ leaves the share 1 − δ² Var_β(log γ − log q) + O(δ³) of the samples effective, so the
        steps have equal length ∫ sd_β(log γ − log q) dβ.  [Zhou, Johansen & Aston 2016]
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


@torch.no_grad()
def run_pilot(kernel: Kernel, position: Tensor, generator: torch.Generator) -> Pilot:
    """Anneal a few chains over a coarse schedule, adapting their step size to each temperature.

    kernel: of a density with a base.  position: draws of that base [chains, *items, d].
    """
    betas, search = sigmoidal(TEMPERATURES), StepSizeTracker(kernel)
    state = kernel.init(position)
    log_weight = torch.zeros(())
    log_factors, spreads, positions = [], [], []
    for beta, step in zip(betas, [*betas.diff(), 0.0], strict=True):
        used, gaps = [], []
        for _ in range(FIRST if beta == 0 else REPEATS):
            used.append(search.log_factor)
            state, info = tempered(search.kernel(), beta).step(state, generator)
            search.update(info)
            gaps.append(log_gap(kernel, state))
        log_weight = log_weight + step * gaps[-1]
        log_factors.append(sum(used[-REPEATS:]) / REPEATS)
        spreads.append(_spread(torch.stack(gaps[-REPEATS:])))
        positions.append(state.position)
    step_sizes: SetStep = steps_as_given
    if search.tunes:
        step_sizes = StepSizes(betas, _smooth(torch.tensor(log_factors, dtype=torch.float64)))
    log_z = log_weight.logsumexp(0) - math.log(len(log_weight))
    return Pilot(betas, step_sizes, torch.stack(spreads), torch.stack(positions), log_z)


def num_pilot_chains(num_items: int, asked: int = 2) -> int:
    """The number of chains of each item, enough in total to learn from."""
    return max(asked, 4, -(-CHAINS // max(1, num_items)))


def log_gap(kernel: Kernel, state: Phase) -> Tensor:
    """log γ(z) − log q(z), in double precision.  [...]"""
    base = kernel.density.base
    assert base is not None
    return (state.log_density(kernel.density) - base.finite_log_prob(state.position)).double()


def _smooth(values: Tensor) -> Tensor:
    """Averages over up to SMOOTHED neighbours on both sides, fewer near the ends.  [n] -> [n]"""
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
