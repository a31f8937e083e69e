"""Annealing: invariant kernels as steps, and learned temperatures for differentiable ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hmcvi.chain import Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.kernels.mcmc.kernel import Kernel


class Anneal(Step):
    """A kernel that leaves γ_β invariant, reversed by itself: log_ratio = log γ_β(old) − log γ_β(new).

    make_kernel(γ_β) builds the kernel; γ_β bridges from target.base to the target.  A chain of these
    over a schedule is annealed importance sampling.  The move is made without gradients: to train
    through annealing, use `annealed_chain`.  [Neal 2001]
    """

    uses_force = False

    def __init__(self, make_kernel: Callable[[Density], Kernel], beta: float) -> None:
        super().__init__()
        if not 0 <= beta <= 1:
            raise ValueError(f"the inverse temperature β must lie in [0, 1], got {beta}")
        self.make_kernel, self.beta = make_kernel, beta

    @torch.no_grad()
    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        assert isinstance(target, Density)
        kernel = self.make_kernel(target if self.beta == 1 else target.bridge(self.beta))
        old = kernel.init(state.position)
        new, info = kernel.step(old)
        # where γ_β = 0 the chain stayed: nothing was gained or lost
        log_ratio = (old.log_prob - new.log_prob).where(old.log_prob > -torch.inf, 0.0)
        return Transition.deterministic(
            Phase(new.position, state.momentum), log_ratio, annealing=log_ratio, **info
        )


class Schedule(nn.Module):
    """Learned inverse temperatures 0 < β_1 < … < β_T < 1: cumulative sums of a softmax, equal at first."""

    def __init__(self, num_temperatures: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_temperatures + 1))

    def forward(self) -> Tensor:
        """[T]"""
        return self.logits.softmax(0).cumsum(0)[:-1]


class Temperature(nn.Module):
    """One of the temperatures of a shared schedule."""

    def __init__(self, schedule: Schedule, index: int) -> None:
        super().__init__()
        self.schedule, self.index = schedule, index

    def forward(self) -> Tensor:
        return self.schedule()[self.index]
