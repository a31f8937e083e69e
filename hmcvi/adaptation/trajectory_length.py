"""Trajectory lengths, chosen by how far trajectories move."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Info

MAX_STEPS = 1024
OVERHEAD = 12.0  # of a transition, in gradients
JITTER = 0.5  # of tuned lengths: trajectories shorter than half of the best length are wasted
FEW_STEPS = 32  # at most, as long as the mass is not known
FEWEST = 10  # values, by which variances are known


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

    Transitions of time t have, for x each coordinate z_i and its distance |z_i − E z_i|, the autocorrelation

        1 − ρ_x(t) = E(x' − x)² / 2 Var x,

    and T maximises min_x (1 − ρ_x)/(1 + ρ_x) / (L + 6), ρ_x averaged over the times t that jitter draws
    around T: a transition costs something besides its L gradients, and slow modes of a density that is not
    normal show in more distant autocorrelations only.
    The transitions of warm-up show ρ_x(t) for the random times they take.
    [after Hoffman, Radul & Sountsov 2021, who maximise E(‖z' − μ‖² − ‖z − μ‖²)²]
    """

    MEMORY = 300  # transitions
    EVERY = 5  # transitions between changes

    def __init__(self, time: float, jitter: float) -> None:
        self.most = MAX_STEPS  # steps of a trajectory
        self._time, self._jitter, self._count, self._num_values = time, jitter, 0, 0
        self._mean, self._square, self._distance = RunningMean(), RunningMean(), RunningMean()
        self._records: deque[tuple[float, Tensor]] = deque(maxlen=self.MEMORY)

    def update(self, kernel: HMC, old: Tensor, new: Tensor, info: Info) -> None:
        """Learn from a transition of `kernel` between positions [..., d]."""
        old, new = old.flatten(0, -2).double(), new.flatten(0, -2).double()
        num_steps = int(info["num_gradients"].flatten()[0]) // kernel.integrator.num_stages
        step_size = mean_step_size(kernel)
        jumps = self._jumps(old, new)
        self._count, self._num_values = self._count + 1, self._num_values + len(new)
        if self._num_values >= FEWEST:  # the first values of one chain have no variance to compare with
            self._records.append((num_steps * step_size, jumps))
        if self._count % self.EVERY == 0 and len(self._records) > self.EVERY:
            self._time = math.sqrt(self._time * self._best_time(step_size))

    def _jumps(self, old: Tensor, new: Tensor) -> Tensor:
        """Estimates of 1 − ρ_x from one transition of all chains.  [2 d]"""
        mean, square = self._mean.add(new.mean(0)), self._square.add(new.square().mean(0))
        variance = (square - mean.square()).clamp(min=1e-300)
        distance, old_distance = (new - mean).abs(), (old - mean).abs()
        middle = self._distance.add(distance.mean(0))
        spread = (variance - middle.square()).clamp(min=1e-3 * variance)
        moved = (new - old).square().mean(0) / variance
        return torch.cat([moved, (distance - old_distance).square().mean(0) / spread]) / 2

    def _best_time(self, step_size: float) -> float:
        """The best T among the times tried so far, or a longer one if it is the longest of them."""
        times = torch.tensor([time for time, _ in self._records], dtype=torch.float64)
        jumps = torch.stack([jump for _, jump in self._records]).cpu()
        grid = torch.linspace(0, 1, 51, dtype=torch.float64)[1:] * times.max()
        weights = torch.softmax(-0.5 * ((grid[:, None] - times) / (0.06 * times.max())).square(), -1)
        inside = ((grid - grid[:, None]).abs() <= self._jitter * grid[:, None] + 1e-9 * grid).double()
        share = inside / inside.sum(-1, keepdim=True)
        # near zero jumps grow as t²: the ratio is what can be smoothed
        curves = grid.square()[:, None] * (weights @ (jumps / times.square()[:, None]))
        moved = (share @ curves).clamp(max=1.9)
        rate = (moved / (2 - moved)).amin(-1) / (grid / step_size + OVERHEAD)
        known = grid <= times.max() / (1 + self._jitter)
        best = int(rate.where(known, -torch.inf).argmax())
        return float(grid[best]) * (1.5 if best >= 0.9 * int(known.sum()) else 1.0)

    def apply(self, kernel: HMC) -> HMC:
        """The kernel with as many steps as fill the time."""
        return kernel.replace(num_steps=min(max(round(self._time / mean_step_size(kernel)), 1), self.most))

    def jitter(self, kernel: HMC) -> float:
        """To be used with the final length; a single step varies only upwards."""
        return 1.0 if kernel._tunes_jitter and kernel.num_steps == 1 else self._jitter


def mean_step_size(kernel: HMC) -> float:
    """The geometric mean of the step size over chains and coordinates."""
    return float(torch.as_tensor(kernel.step_size).log().mean().exp())
