"""Trajectory lengths, chosen by how far trajectories move."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Info

MAX_STEPS = 1024


class RunningMean:
    """A running mean: the plain mean of the first values, an exponential moving average later."""

    def __init__(self, memory: float = 0.995) -> None:
        self._memory, self._count = memory, 0
        self.value: Any = 0.0

    def add(self, value: Any) -> Any:
        keep = min(self._memory, self._count / (self._count + 1))
        self.value = keep * self.value + (1 - keep) * value
        self._count += 1
        return self.value


class TrajectoryLength:
    """The time T = ε L that gives the most effective samples per unit of work.

    With coordinates scaled to unit variance and S = ‖z − μ‖², transitions of time t have autocorrelations

        1 − ρ₁(t) = E‖z' − z‖² / 2d,   1 − ρ₂(t) = E(S' − S)² / 2 Var S,

    and T maximises min_i (1 − ρ_i)/(1 + ρ_i) / T, ρ_i averaged over the times t that jitter draws around T.
    The transitions of warm-up show ρ_i(t) for the random times they take.
    [after Hoffman, Radul & Sountsov 2021, who maximise E(S' − S)²]
    """

    MEMORY = 300  # transitions
    EVERY = 5  # transitions between changes

    def __init__(self, time: float, jitter: float) -> None:
        self._time, self._jitter, self._count = time, jitter, 0
        self._mean, self._square = RunningMean(), RunningMean()
        self._spread, self._spread_square = RunningMean(), RunningMean()
        self._records: deque[tuple[float, float, float]] = deque(maxlen=self.MEMORY)

    def update(self, kernel: HMC, old: Phase, new: Phase, info: Info) -> None:
        """Learn from a transition of `kernel`."""
        num_steps = int(info["num_gradients"].flatten()[0]) // kernel.integrator.num_stages
        self._records.append((num_steps * mean_step_size(kernel), *self._jumps(old.position, new.position)))
        self._count += 1
        if self._count % self.EVERY == 0 and len(self._records) > self.EVERY:
            self._time = math.sqrt(self._time * self._best_time())

    def _jumps(self, old: Tensor, new: Tensor) -> tuple[float, float]:
        """Estimates of 1 − ρ₁ and 1 − ρ₂ from one transition of all chains."""
        old, new = old.flatten(0, -2).double(), new.flatten(0, -2).double()
        mean, square = self._mean.add(new.mean(0)), self._square.add(new.square().mean(0))
        scale = (square - mean.square()).clamp(min=1e-300).sqrt()
        old, new = (old - mean) / scale, (new - mean) / scale
        old_spread, spread = old.square().sum(-1), new.square().sum(-1)
        center, second = self._spread.add(spread.mean()), self._spread_square.add(spread.square().mean())
        moved, change = (new - old).square().mean() / 2, (spread - old_spread).square().mean() / 2
        return float(moved), float(change / (second - center.square()).clamp(min=1e-300))

    def _best_time(self) -> float:
        """The best T among the times tried so far, or a longer one if it is the longest of them."""
        times, *jumps = torch.tensor(list(self._records), dtype=torch.float64).T
        grid = torch.linspace(0, 1, 51, dtype=torch.float64)[1:] * times.max()
        weights = torch.softmax(-0.5 * ((grid[:, None] - times) / (0.06 * times.max())).square(), -1)
        inside = ((grid - grid[:, None]).abs() <= self._jitter * grid[:, None] + 1e-9 * grid).double()
        share = inside / inside.sum(-1, keepdim=True)
        # near zero jumps grow as t²: the ratio is what can be smoothed
        curves = [grid.square() * (weights @ (jump / times.square())) for jump in jumps]
        moved = torch.stack([share @ curve for curve in curves]).clamp(max=1.9)
        rate = (moved / (2 - moved)).amin(0) / grid
        known = grid <= times.max() / (1 + self._jitter)
        best = int(rate.where(known, -torch.inf).argmax())
        return float(grid[best]) * (1.5 if best >= 0.9 * int(known.sum()) else 1.0)

    def apply(self, kernel: HMC) -> HMC:
        """The kernel with as many steps as fill the time."""
        return kernel.replace(num_steps=min(max(round(self._time / mean_step_size(kernel)), 1), MAX_STEPS))


def mean_step_size(kernel: HMC) -> float:
    """The geometric mean of the step size over chains and coordinates."""
    return float(torch.as_tensor(kernel.step_size).log().mean().exp())
