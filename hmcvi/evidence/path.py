"""What estimators along a path from base to target share: the kernel, the temperatures, the pilot run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hmcvi.adaptation.pilot import Pilot, num_pilot_chains, run_pilot
from hmcvi.adaptation.schedule import checked, sigmoidal
from hmcvi.density import Density
from hmcvi.dynamics.metrics import DiagonalMetric, IdentityMetric
from hmcvi.evidence.bases import BaseDistribution
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Kernel, MakeKernel

# Along a path: at the same number of gradients, more temperatures gain more than longer trajectories.
ANNEALED = {"num_steps": 1, "persistence": 0.6}
# Along a chain: lengths drawn at random, since a fixed one may bring a trajectory back to where it began.
MIXING = {"num_steps": 5, "jitter": 0.8}


def make_kernel(
    kernel: MakeKernel | None,
    base: BaseDistribution,
    target: Density,
    default: Mapping[str, Any] = ANNEALED,
    compile: bool = False,
) -> Kernel:
    """The kernel given, on the path from base to target; by default HMC with the mass of the base."""
    density = base.target(target)
    if kernel is not None:
        if compile:
            raise ValueError("compile is for the kernel that is made here: build yours with compile=True")
        return kernel(density)
    scale = base.scale()
    metric = IdentityMetric() if scale is None else DiagonalMetric(-scale.log())
    return HMC(density, step_size=0.5, metric=metric, compile=compile, **default)


def pilot_of(
    base: BaseDistribution, kernel: Kernel, generator: torch.Generator, num_chains: int = 2
) -> Pilot:
    """A pilot run from draws of the base."""
    count = num_pilot_chains(base.batch_shape.numel(), num_chains)
    return run_pilot(kernel, base.draw(count, generator), generator)


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
