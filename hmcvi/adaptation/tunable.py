"""Which settings of a kernel warm-up may tune.

Register your own kernels beside their class, and `hmcvi.sample` tunes them:

    @hmcvi.adaptation.tuning.register
    def _(kernel: MyKernel) -> Tuning:
        return Tuning(step_size=True, target_acceptance=0.6)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hmcvi.kernels.constrained.kernel import ConstrainedHMC
from hmcvi.kernels.mcmc.discontinuous import DiscontinuousHMC
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Kernel
from hmcvi.kernels.mcmc.metropolis import RandomWalkMetropolis
from hmcvi.kernels.mcmc.riemannian import RiemannianHMC
from hmcvi.kernels.pseudo_marginal.hmc import PseudoMarginalHMC


@dataclass(frozen=True)
class Tuning:
    """The settings of a kernel that are tuned, by their names.

    target_acceptance: for the step size; the kernel reports `acceptance_rate`.
    settles: initial states may accept only much smaller steps than later ones; warm-up begins with those.
    """

    step_size: bool = False
    metric: bool = False
    num_steps: bool = False
    jitter: bool = False
    target_acceptance: float = 0.8
    settles: bool = False
    coordinates: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        names = "step_size", "metric", "num_steps", "jitter", "coordinates"
        return tuple(name for name in names if getattr(self, name))


@functools.singledispatch
def tuning(kernel: Kernel) -> Tuning:
    """What may be tuned; nothing, for kernels that are not registered."""
    return Tuning()


@tuning.register
def _(kernel: HMC) -> Tuning:
    return Tuning(step_size=True, metric=True, num_steps=True, jitter=kernel._tunes_jitter, coordinates=True)


@tuning.register
def _(kernel: RandomWalkMetropolis) -> Tuning:
    return Tuning(step_size=True, metric=True, target_acceptance=0.234)


@tuning.register
def _(kernel: DiscontinuousHMC) -> Tuning:
    # without continuous coordinates every proposal is accepted, which says nothing about the step size
    return Tuning(step_size=kernel.uses_gradient, metric=True)


@tuning.register
def _(kernel: RiemannianHMC) -> Tuning:
    return Tuning(step_size=True)


@tuning.register
def _(kernel: ConstrainedHMC) -> Tuning:
    return Tuning(step_size=True, settles=True)


@tuning.register
def _(kernel: PseudoMarginalHMC) -> Tuning:
    return Tuning(step_size=True, metric=True)


@functools.singledispatch
def shortest(kernel: Kernel) -> Kernel:
    """The shortest move of this kind, from which warm-up learns the magnitude of the step size."""
    return kernel.replace(num_steps=1) if hasattr(kernel, "num_steps") else kernel


@shortest.register
def _(kernel: HMC) -> HMC:
    return kernel.replace(num_steps=1, jitter=0.0, persistence=0.0, compile=False, chunk=1)
