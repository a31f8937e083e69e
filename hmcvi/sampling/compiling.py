"""When a run begins to do without Python: recorded operations at first, a compiled kernel later."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.kernels.mcmc.compose import Composite
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.sampling.replayed import replayed

# CPU seconds, roughly: of compilation, and saved by it in each gradient; also for each operation of log γ
COMPILATION, COMPILATION_EACH = 10.0, 0.05
SAVED, SAVED_EACH = 15e-6, 5e-6
RECORDED = 200  # gradients after which it pays to record the next one


class Compiling:
    """Decides when a run that began uncompiled records its density, and when it compiles its kernel.

    It compiles after so many gradients of all chains as compilation would have made cheaper by what it costs:
    whenever the run ends, it has then taken at most twice the time it could have.  Their number depends on
    log γ alone, neither on clocks nor on how many draws are wanted, so that repeated and resumed runs give
    the same draws.  Recorded operations, from early on, give the same bits.

    gradients: made so far, or expected to have been.
    """

    def __init__(self, kernel: Kernel, position: Tensor, gradients: int = 0) -> None:
        self._density, self._position, self.gradients = kernel.density, position, gradients
        self._least: float | None = None if getattr(kernel, "compile", None) == "auto" else math.inf
        self._recorded: Density | None = None  # once it is
        # another `step` may move a part of the chains
        self._records = self._least is None and isinstance(kernel, HMC) and type(kernel).step is HMC.step

    def count(self, info: Info) -> None:
        """Count the gradients of a transition."""
        if "num_gradients" in info:
            self.gradients += int(info["num_gradients"].flatten()[0])

    def apply(self, kernel: Kernel, num_transitions: int = 0) -> Kernel:
        """The kernel to go on with, after so many more transitions of its usual length."""
        made = self.gradients
        if isinstance(kernel, HMC):
            made += num_transitions * kernel.num_steps * kernel.integrator.num_stages
        if made < RECORDED:
            return kernel
        if made >= COMPILATION_EACH / SAVED_EACH:  # enough for the largest log γ
            if self._least is None:
                count = _num_operations(self._density, self._position)
                self._least = (COMPILATION + COMPILATION_EACH * count) / (SAVED + SAVED_EACH * count)
            if made >= self._least:
                return compiled(self.as_given(kernel))
        return self._with_record(kernel) if self._records else kernel

    def _with_record(self, kernel: Kernel) -> Kernel:
        """The kernel with a recorded density, which is the same one."""
        if self._recorded is None:
            self._recorded = replayed(self._density, self._position)
        return kernel if kernel.density is self._recorded else kernel.replace(density=self._recorded)

    def as_given(self, kernel: Kernel) -> Kernel:
        """The kernel with the density that was given."""
        return kernel if kernel.density is not self._recorded else kernel.replace(density=self._density)


def compiled(kernel: Kernel) -> Kernel:
    """The kernel, to be compiled if that was left to the run."""
    return kernel.replace(compile=True) if getattr(kernel, "compile", None) == "auto" else kernel


def as_defined(kernel: Kernel) -> Kernel:
    """The kernel without how it is computed, which is no part of the experiment."""
    if isinstance(kernel, Composite):
        return kernel.with_kernels([as_defined(part) for part in kernel.kernels])
    return kernel.replace(compile=False, chunk=1) if isinstance(kernel, HMC) else kernel


def _num_operations(density: Density, position: Tensor) -> int:
    """Differentiable operations that log γ is made of."""
    with torch.enable_grad():
        last: Any = density.log_prob(position.detach().requires_grad_()).grad_fn
    found, waiting = {last}, [last]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in found:
                found.add(node)
                waiting.append(node)
    return len(found)
