"""Step sizes by dual averaging, and lengths of trajectories by how far they carry."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Info, Kernel

MAX_DOUBLINGS = 40
MAX_STEPS = 1024
# With the usual 0.05 the step sizes swing so widely, where the acceptance falls steeply, that the mean of
# their logarithms is too small: 0.75 to 0.85 was reached instead of 0.65.
GAMMA = 0.1


def _dual_averaging(**settings: float) -> Any:
    from pyro.ops.dual_averaging import DualAveraging

    return DualAveraging(**settings)


class StepSizeSearch:
    """ε = f · (the step size given), log f by dual averaging so that the mean acceptance reaches the target.

    One factor for all chains.  [Hoffman & Gelman 2014, §3.2]
    """

    def __init__(self, kernel: Kernel, target: float) -> None:
        self._given, self._target = kernel.step_size, target
        self._factor = 1.0
        self._averaging = _dual_averaging()

    def search(self, probe: Kernel, state: Any, generator: torch.Generator | None) -> None:
        """Double or halve until the acceptance of `probe` crosses the target; average from there."""
        went_up = None
        for _ in range(MAX_DOUBLINGS):
            _, info = self.apply(probe).step(state, generator)
            up = float(info["acceptance_rate"].mean()) > self._target
            if went_up is not None and up != went_up:
                break
            went_up = up
            self._factor *= 2.0 if up else 0.5
        self._averaging = _dual_averaging(prox_center=math.log(self._factor), gamma=GAMMA)

    def update(self, info: Info) -> None:
        self._averaging.step(self._target - float(info["acceptance_rate"].mean()))
        self._factor = math.exp(self._averaging.get_state()[0])

    def finish(self) -> None:
        """Settle on the average of what was tried."""
        self._factor = math.exp(self._averaging.get_state()[1])

    def apply(self, kernel: Kernel) -> Kernel:
        return kernel.replace(step_size=self._factor * self._given)


class Settling:
    """The shortest moves of a kernel, each chain with its own step: log ε ← log ε + a − a*, a the acceptance.

    A chain that starts far out gets through with the small steps it needs there, whatever the others need.
    Moves are short so that the energy it comes with leaves with the momenta, and throws it nowhere else.
    [Graham 2018, §4.10.1, uses fewer and smaller steps at first]
    """

    def __init__(self, kernel: Kernel, target: float, num_transitions: int) -> None:
        self.kernel, self._target, self._num_left = kernel.single_step(), target, num_transitions

    def update(self, info: Info) -> bool:
        """Learn from a transition; whether it was the last."""
        growth = (info["acceptance_rate"] - self._target).exp()[..., None]
        self.kernel = self.kernel.replace(step_size=growth * self.kernel.step_size)
        self._num_left -= 1
        return self._num_left == 0


class Average:
    """A mean that forgets: the plain mean of the first values, an exponential one later."""

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
        self._mean, self._square = Average(), Average()
        self._spread, self._spread_square = Average(), Average()
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
        """The best T among those whose times have been tried, or beyond if it is the longest of them."""
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
        """The kernel with as many of its steps as fill the time."""
        return kernel.replace(num_steps=min(max(round(self._time / mean_step_size(kernel)), 1), MAX_STEPS))


def mean_step_size(kernel: HMC) -> float:
    return float(kernel.step_size.log().mean().exp())
