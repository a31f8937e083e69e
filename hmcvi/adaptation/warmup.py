"""Warm-up: step size, mass and trajectory length tuned while the chains converge, then frozen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from hmcvi.adaptation.collapse import WarmupError, refuse_collapse
from hmcvi.adaptation.fisher import FisherMoments
from hmcvi.adaptation.lagging import Laggards, keeping_up
from hmcvi.adaptation.low_rank import LowRank
from hmcvi.adaptation.mass import Moments, first_window, inverse_metric, windows
from hmcvi.adaptation.noncentring import NoncentringSearch
from hmcvi.adaptation.options import Warmup
from hmcvi.adaptation.settling import WHITENED_STEP, HamiltonianSettling, Settling, approach
from hmcvi.adaptation.step_size import RaisedTarget, StepSizeSearch
from hmcvi.adaptation.trajectory_length import FEW_STEPS, JITTER, MAX_STEPS, TrajectoryLength, mean_step_size
from hmcvi.adaptation.tunable import shortest, tuning
from hmcvi.dynamics.forces import ForcedDensity
from hmcvi.dynamics.metrics import IdentityMetric
from hmcvi.kernels.mcmc.compose import Composite, Part
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Info, Kernel

Observe = Callable[[Kernel, Info], None]

__all__ = ["Tuner", "Warmup", "WarmupError", "make_tuner", "tuning_step", "warm_up"]


def warm_up(
    kernel: Kernel,
    state: Any,
    num_warmup: int,
    generator: torch.Generator,
    warmup: Warmup,
    observe: Observe,
    replaced: Callable[[Kernel], Kernel] = lambda kernel: kernel,
) -> tuple[Kernel, Any]:
    """The kernel with its settings tuned over `num_warmup` transitions, and the state it arrived at.

    replaced: what to go on with in place of the kernel, asked after each transition.
    """
    if num_warmup == 0:
        return kernel, state
    tuner = make_tuner(kernel, warmup, num_warmup)
    state = tuner.approach(state)
    tuner.start(state, generator)
    for _ in range(num_warmup):
        state, info = tuning_step(tuner, state, generator)
        observe(tuner.kernel, info)
        tuner.kernel = replaced(tuner.kernel)
    return tuner.finish(), state


def make_tuner(kernel: Kernel, warmup: Warmup, num_warmup: int) -> Tuner | CompositeTuner:
    """The tuner of a kernel over `num_warmup` transitions; start it with the state of the chains."""
    if isinstance(kernel, Composite):
        return CompositeTuner(kernel, warmup, num_warmup)
    return Tuner(kernel, warmup, num_warmup)


def tuning_step(
    tuner: Tuner | CompositeTuner, state: Any, generator: torch.Generator | None
) -> tuple[Any, Info]:
    """Make a transition from which the tuner learns."""
    new, info = tuner.kernel.step(state, generator)
    if tuner.update(state, new, info, generator):
        before = tuner.num_restarted
        new = tuner.restart(_at_rest(new), generator)  # its momentum belonged to the old mass
        if tuner.num_restarted > before:
            info = {**info, "num_restarted": torch.tensor(tuner.num_restarted - before)}
    return new, info


class Tuner:
    """Tunes one kernel: `kernel` is the version to use now, `finish()` the one to keep.

    part: the kernel and the state as seen by this part of a composite kernel; None where it runs alone.
    """

    def __init__(self, kernel: Kernel, warmup: Warmup, num_warmup: int, part: Part | None = None) -> None:
        self.kernel, self._part = kernel, part or (lambda kernel, state: (kernel, state))
        self._step_size: StepSizeSearch | None = None
        self._settling: Settling | None = None
        self._length: TrajectoryLength | None = None
        self._windows: list[tuple[int, int]] = []
        self._laggards = Laggards()
        # states at a temperature carry the gradient of another density
        self._sees_gradients = part is None and isinstance(kernel, HMC) and kernel.beta is None
        self._index = self._num_masses = 0
        allowed = tuning(kernel)
        self._jitter = JITTER if allowed.jitter else getattr(kernel, "jitter", 0.0)
        learns_mass = allowed.metric and warmup.mass != "fixed"
        self._dense = warmup.is_dense(getattr(kernel, "metric", IdentityMetric()))
        target = warmup.target_acceptance or allowed.target_acceptance
        self._aim = RaisedTarget(target, not self._sees_gradients or warmup.target_acceptance is not None)
        self._search: NoncentringSearch | None = None
        forced = isinstance(kernel.density, ForcedDensity)
        self._noncentres = warmup.noncentring and self._sees_gradients and learns_mass and not forced
        if allowed.step_size:
            self._step_size = StepSizeSearch(kernel, target)
            if allowed.settles and num_warmup >= 3:
                self._settling = Settling(kernel, target, num_warmup // 3)
                num_warmup -= num_warmup // 3
            elif self._sees_gradients and (settled := first_window(num_warmup)):
                assert isinstance(kernel, HMC)
                self._settling = HamiltonianSettling(kernel, target, settled, learns_mass, self._dense)
                self._index = settled
        if learns_mass:
            self._windows = windows(num_warmup)
            self._begin_window()

    def _begin_window(self) -> None:
        sees, dense = self._sees_gradients, self._dense
        self._moments: Moments | FisherMoments = FisherMoments(dense) if sees else Moments(bool(dense))
        self._search = NoncentringSearch() if self._noncentres else None

    def start(self, state: Any, generator: torch.Generator | None) -> None:
        """Find the magnitude of the step size, at first and whenever the mass has changed."""
        if self._settling is not None:
            self._settling.start(state, generator)
            self._settled, self.kernel = self.kernel, self._settling.kernel
            return
        if self._step_size is not None:
            kernel, own = self._part(self.kernel, state)
            self._step_size.search(shortest(kernel), _at_rest(own), generator)
            self.kernel = self._step_size.apply(self.kernel)
        if isinstance(self.kernel, HMC) and self.kernel.tunes_num_steps:
            self._start_length(self.kernel)

    def approach(self, state: Any) -> Any:
        """Initial states within reach of the kernel."""
        return approach(self.kernel.density, state) if self._sees_gradients else state

    def _start_length(self, kernel: HMC) -> None:
        """Learn the length anew with the first masses, which change its unit; later ones hardly do."""
        if self._length is None or self._num_masses < 2:
            # with all scales one, trajectories on a normal target have a period of 2π
            time = math.pi / 2 if self._num_masses else mean_step_size(kernel) * kernel.num_steps
            self._length = TrajectoryLength(time, self._jitter)
        self._length.most = MAX_STEPS if self._num_masses > 1 or not self._windows else FEW_STEPS
        self.kernel = self._length.apply(kernel.replace(jitter=1.0))

    def update(self, old: Any, new: Any, info: Info, generator: torch.Generator | None) -> bool:
        """Learn from a transition; returns whether the mass has changed."""
        good: Any = ...  # the chains to learn from
        if self._sees_gradients:
            good = keeping_up(new.log_prob, new.position.shape[-1])
            self._laggards.observe(good, info["accepted"])
        if self._settling is not None:
            return self._settle(self._settling, new, info, generator)
        if self._length is not None:
            self._observe_length(self._length, old.position[good], new.position[good], info)
        if self._step_size is not None:
            self._step_size.update(info["acceptance_rate"][good])
            self._aim.observe(info["acceptance_rate"][good])
        self._apply()
        index, self._index = self._index, self._index + 1
        if not self._windows or index < self._windows[0][0]:
            return False
        if isinstance(self._moments, FisherMoments):
            self._moments.add(new.position[good], new.grad[good])
            if self._search is not None:
                self._search.add(new.position[good], new.grad[good])
        else:
            self._moments.add(self._part(self.kernel, new)[1].position)
        if index < self._windows[0][1] - 1:
            return False
        if self._sees_gradients:
            self._refuse_collapse(new)
        covariance: Tensor | LowRank | None = self._noncentre(new.position)
        if covariance is None:
            covariance = self._moments.covariance()
        self._windows = self._windows[1:]
        self._begin_window()
        if covariance is None:
            return False
        self.kernel = self.kernel.replace(metric=inverse_metric(covariance, new.position))
        self._num_masses += 1
        if self._aim.decide():
            self._step_size = StepSizeSearch(self.kernel, self._aim.value)
        self.start(new, generator)
        return True

    def _observe_length(self, length: TrajectoryLength, old: Tensor, new: Tensor, info: Info) -> None:
        kernel = cast(HMC, self.kernel)
        if kernel.coordinates is not None:
            old, new = kernel.coordinates.to_reference(old), kernel.coordinates.to_reference(new)
        length.update(kernel, old, new, info)

    def _noncentre(self, like: Tensor) -> Tensor | LowRank | None:
        """Learn coordinates where curvature changes; returns the covariance in them."""
        kernel = self.kernel
        if self._search is None or not isinstance(kernel, HMC):
            return None
        shortened = self._aim.is_needed or self._aim.value > self._aim.first
        if kernel.coordinates is None and not shortened:
            return None
        found = self._search.learn(self._dense, like)
        if found is None:
            self.kernel = kernel.replace(coordinates=None)
            return None
        coordinates, covariance = found
        if kernel.coordinates is None:  # all begins anew, in coordinates that may need no smaller steps
            self._num_masses = 0
            if len(self._windows) > 1:  # a later window would see if they do
                self._aim = RaisedTarget(self._aim.first, self._aim.is_fixed)
            self._step_size = StepSizeSearch(kernel.replace(step_size=WHITENED_STEP), self._aim.value)
            self._laggards.forget()  # chains that stood still were where scales are small
        self.kernel = kernel.replace(coordinates=coordinates)
        return covariance

    def _refuse_collapse(self, state: Any) -> None:
        assert self._step_size is not None
        step = self._step_size.average if self._num_masses else None
        refuse_collapse(step, self._laggards.num_still(), state.log_prob.numel())

    @property
    def num_restarted(self) -> int:
        """Chains restarted so far."""
        return self._laggards.restarted

    def restart(self, state: Any, generator: torch.Generator | None) -> Any:
        """The state after a window, chains that lag behind put where others are."""
        return (
            self._laggards.restart(self.kernel.density, state, generator) if self._sees_gradients else state
        )

    def _settle(self, settling: Settling, state: Any, info: Info, generator: torch.Generator | None) -> bool:
        """Learn from a transition of settling; after the last one, begin to tune the kernel itself."""
        if not settling.update(state, info, generator):
            self.kernel = settling.kernel
            return False
        self._settling, self.kernel = None, settling.finish(self._settled)
        if self._sees_gradients:
            self._step_size = StepSizeSearch(self.kernel, self._aim.value)
            before, after = cast(HMC, self._settled), cast(HMC, self.kernel)
            self._num_masses = int(after.metric is not before.metric)
        self.start(state, generator)
        return self._sees_gradients

    def finish(self) -> Kernel:
        """The kernel with its final settings."""
        if self._step_size is not None:
            self._step_size.finish()
        self._apply()
        if self._length is not None and isinstance(self.kernel, HMC):
            return self.kernel.replace(jitter=self._length.jitter(self.kernel))
        return self.kernel

    def _apply(self) -> None:
        if self._step_size is not None:
            self.kernel = self._step_size.apply(self.kernel)
        if self._length is not None:
            self.kernel = self._length.apply(cast(HMC, self.kernel))


class CompositeTuner:
    """Tunes each part of a composite kernel by what that part reports."""

    num_restarted = 0

    def approach(self, state: Any) -> Any:
        return state

    def __init__(self, kernel: Composite, warmup: Warmup, num_warmup: int) -> None:
        for part in kernel.kernels:
            if isinstance(part, HMC) and part.tunes_num_steps:
                raise ValueError("num_steps is tuned only where HMC runs alone: give it a number here")
        if sum(getattr(part, "persistence", 0.0) != 0 for part in kernel.kernels) > 1:
            warmup = replace(warmup, mass="fixed")  # they share a momentum and must share its distribution
        self.kernel = kernel
        self._tuners = [
            Tuner(own, warmup, num_warmup, part)
            for own, part in zip(kernel.kernels, kernel.parts(), strict=True)
        ]

    def start(self, state: Any, generator: torch.Generator | None) -> None:
        for tuner in self._tuners:
            tuner.start(state, generator)
        self._apply()

    def update(self, old: Any, new: Any, info: Info, generator: torch.Generator | None) -> bool:
        changed = False
        for tuner, report in zip(self._tuners, self.kernel.reports(info), strict=True):
            changed = tuner.update(old, new, report, generator) or changed
        self._apply()
        return changed

    def restart(self, state: Any, generator: torch.Generator | None) -> Any:
        return state

    def finish(self) -> Kernel:
        for tuner in self._tuners:
            tuner.finish()
        self._apply()
        return self.kernel

    def _apply(self) -> None:
        self.kernel = self.kernel.with_kernels([tuner.kernel for tuner in self._tuners])


def _at_rest(state: Any) -> Any:
    """Without the momentum that some states carry."""
    return state._replace(momentum=None) if "momentum" in state._fields else state
