"""Kernels put on other densities: another one, one at a temperature, or one of some coordinates alone.

Each is a function that takes a kernel.  What they do for a kind of kernel is registered beside its class
(`@retarget.register`); unless it is, the kernel is copied with another `density`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.kernels.mcmc.kernel import Info, Kernel


@functools.singledispatch
def retarget(kernel: Kernel, density: Density) -> Kernel:
    """The same kernel for another density."""
    return kernel.replace(density=density)


@functools.singledispatch
def conditional(kernel: Kernel, density: Density, position: Tensor) -> Kernel:
    """The kernel for `density`, that of some coordinates of `position` [..., d] given the others."""
    return retarget(kernel, density)


@functools.singledispatch
def tempered(kernel: Kernel, beta: Tensor) -> Kernel:
    """A kernel that leaves γ_β = base^{1−β} γ^β invariant, for a density with a base.

    β: [] or one per chain [...].  Whatever it is, states carry log γ of the density itself, so that β may be
    another one at every step.
    """
    return _Tempered(kernel, beta)


@dataclass(frozen=True, eq=False)
class _Tempered(Kernel):
    """Any kernel at inverse temperature β, by the bridge γ_β."""

    kernel: Kernel
    beta: Tensor

    @property
    def density(self) -> Density:  # type: ignore[override]
        """γ, not γ_β: states are those of `kernel`."""
        return self.kernel.density

    def init(self, position: Tensor) -> Phase:
        state: Phase = self.kernel.init(position)
        return state

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        bridged = retarget(self.kernel, self.density.bridge(self.beta))
        new, info = bridged.step(Phase(state.position, state.momentum), generator)
        return Phase(new.position, new.momentum, self.density.finite_log_prob(new.position)), info
