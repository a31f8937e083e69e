"""Step sizes: searched for, averaged, followed along temperatures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hmcvi.adaptation.tunable import tuning
from hmcvi.kernels.mcmc.kernel import Info, Kernel

MAX_DOUBLINGS = 40
# With the usual 0.05 the step sizes swing so widely, where the acceptance falls steeply, that the mean of
# their logarithms is too small: 0.75 to 0.85 was reached instead of 0.65.
GAMMA = 0.1
OFFSET, KAPPA = 10, 0.75  # of dual averaging, against rough first steps; how fast they are forgotten

SURELY_REJECTED, RARE, MAX_TARGET = 0.1, 0.02, 0.975
UNCOUNTED = 10  # transitions of a window, in which the step size is still searched for

ANNEALED_ACCEPTANCE = 0.72  # aimed at by gradient kernels along a path, the middle of 0.65–0.8
FIRST_GAIN, GAIN = 4.0, 0.5  # of the step size by the error of the acceptance


class RaisedTarget:
    """The acceptance to aim at, raised where curvature changes from place to place.

    On a normal density with a mean acceptance of 0.8 hardly any proposal has one below 0.1: its energy error
    would be four standard deviations out.  Where some have, a step that suits most places is too long for
    others, which chains then do not enter: 1 − target is halved until such proposals are rare.
    """

    def __init__(self, target: float, fixed: bool) -> None:
        self.first = self.value = target
        self.is_fixed = fixed
        self._count, self._rejected = 0, 0.0

    def observe(self, acceptance_rate: Tensor) -> None:
        """A transition of all chains."""
        self._count += 1
        if self._count <= UNCOUNTED:
            return
        self._rejected += float((acceptance_rate < SURELY_REJECTED).double().mean())

    @property
    def is_needed(self) -> bool:
        """Whether such proposals are not rare in this window."""
        return self._rejected / max(1, self._count - UNCOUNTED) > RARE

    def decide(self) -> bool:
        """At the end of a window: whether the target has changed."""
        needed = self.is_needed
        self._count, self._rejected = 0, 0.0
        if self.is_fixed or not needed or self.value >= MAX_TARGET:
            return False
        self.value = min((1 + self.value) / 2, MAX_TARGET)
        return True


class DualAveraging:
    """x with mean g(x) = 0, from noisy g: steps from a centre, the later the less they weigh.

    That of Pyro, written again because importing Pyro takes a third of a second.
    [Nesterov 2009; Hoffman & Gelman 2014, (6)]

    x: to be tried next; average: of what was tried, later ones weighing more.
    """

    def __init__(self, center: float = 0.0, gamma: float = 0.05) -> None:
        self._center, self._gamma = center, gamma
        self._count, self._mean = 0, 0.0
        self.x = self.average = center

    def step(self, g: float) -> None:
        """Learn from g at x."""
        self._count += 1
        self._mean += (g - self._mean) / (self._count + OFFSET)
        self.x = self._center - math.sqrt(self._count) / self._gamma * self._mean
        self.average += (self.x - self.average) * self._count**-KAPPA


class StepSizeSearch:
    """ε = f · (the step size given), log f by dual averaging so that the mean acceptance reaches the target.

    One factor for all chains.  [Hoffman & Gelman 2014, §3.2]
    """

    def __init__(self, kernel: Kernel, target: float) -> None:
        self._given, self._target = step_size_of(kernel), target
        self._factor = 1.0
        self._averaging = DualAveraging()

    def search(self, probe: Kernel, state: Any, generator: torch.Generator | None) -> None:
        """Double or halve until the acceptance of `probe` crosses the target; dual averaging begins there."""
        went_up = None
        for _ in range(MAX_DOUBLINGS):
            _, info = self.apply(probe).step(state, generator)
            up = float(info["acceptance_rate"].mean()) > self._target
            if went_up is not None and up != went_up:
                break
            went_up = up
            self._factor *= 2.0 if up else 0.5
        self._averaging = DualAveraging(math.log(self._factor), GAMMA)

    def update(self, acceptance_rate: Tensor) -> None:
        """Learn from the acceptance of the chains that count."""
        self._averaging.step(self._target - float(acceptance_rate.mean()))
        self._factor = math.exp(self._averaging.x)

    @property
    def average(self) -> float:
        """The geometric mean, over chains and coordinates, of the average of what was tried."""
        return math.exp(self._averaging.average) * float(self._given.double().log().mean().exp())

    def finish(self) -> None:
        """Settle on the average of what was tried."""
        self._factor = math.exp(self._averaging.average)

    def apply(self, kernel: Kernel) -> Kernel:
        return with_step_size(kernel, self._factor * self._given)


class StepSizeTracker:
    """log ε ← log ε + g (acceptance − aim): follows the step size that is right while temperatures change.

    The gain g is halved, down to GAIN, whenever the acceptance crosses the aim.  [Kesten 1958]
    """

    def __init__(self, kernel: Kernel) -> None:
        self._given, self.tunes = kernel, tuning(kernel).step_size
        self._aim = ANNEALED_ACCEPTANCE if kernel.uses_gradient else tuning(kernel).target_acceptance
        self.log_factor, self._gain, self._error = 0.0, FIRST_GAIN, 0.0

    def kernel(self) -> Kernel:
        """The kernel with the step size to use now."""
        if not self.tunes:
            return self._given
        return with_step_size(self._given, step_size_of(self._given) * math.exp(self.log_factor))

    def update(self, info: Info) -> None:
        if not self.tunes:
            return
        error = float(info["acceptance_rate"].mean()) - self._aim
        if error * self._error < 0:
            self._gain = max(GAIN, self._gain / 2)
        self._error = error
        self.log_factor += self._gain * error


def halve_until(kept: Callable[[], bool], steps: Sequence[Tensor], most: int) -> None:
    """Halve e^s of all log step sizes `steps`, in place, until energy is `kept`.

    Where `most` halvings do not help, they stay as they were.
    """
    given = [step.clone() for step in steps]
    for _ in range(most):
        if kept():
            return
        for step in steps:
            step.sub_(math.log(2))
    for step, first in zip(steps, given, strict=True):
        step.copy_(first)


def take_best(score: Callable[[], float], steps: Sequence[Tensor], factors: Sequence[float]) -> None:
    """Multiply e^s of all log step sizes `steps`, in place, by the factor of largest score."""
    given = [step.clone() for step in steps]

    def scaled(factor: float) -> float:
        for step, first in zip(steps, given, strict=True):
            step.copy_(first + math.log(factor))
        return score()

    scores = {factor: scaled(factor) for factor in factors}
    best = max(scores, key=lambda factor: scores[factor] if math.isfinite(scores[factor]) else -math.inf)
    for step, first in zip(steps, given, strict=True):
        step.copy_(first + math.log(best))


def step_size_of(kernel: Kernel) -> Tensor:
    """The step size of a kernel that has one."""
    return torch.as_tensor(getattr(kernel, "step_size"))  # noqa: B009


def with_step_size(kernel: Kernel, step_size: Tensor) -> Kernel:
    """The kernel with another step size, kept positive and finite where a search has run out of numbers."""
    limits = torch.finfo(step_size.dtype)
    return kernel.replace(step_size=step_size.clamp(limits.tiny, limits.max))
