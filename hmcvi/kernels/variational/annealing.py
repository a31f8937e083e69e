"""Annealing: invariant kernels as steps, and learned temperatures for differentiable ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hmcvi.chain import Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.kernels.mcmc.kernel import Info, Kernel, MakeKernel
from hmcvi.kernels.mcmc.retarget import tempered


class Anneal(Step):
    """A kernel that leaves γ_β invariant, reversed by itself: log_ratio = log γ_β(old) − log γ_β(new).

    kernel: for a density γ with a base q, or a function that makes it for the target; it is run at
    γ_β = q^{1−β} γ^β.  A chain of these over a schedule is annealed importance sampling.  The move is made
    without gradients: to train through annealing, use `annealed_chain`.  Prices are in double precision,
    because many of them nearly cancel.  info has means over all chains.  [Neal 2001]

    The momentum of the chain is left as it is; a kernel with persistence uses it as its own.
    observe(kernel, info): called after each move.
    """

    uses_force = False

    def __init__(
        self,
        kernel: Kernel | MakeKernel,
        beta: float | Tensor,
        observe: Callable[[Kernel, Info], None] | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= beta <= 1:
            raise ValueError(f"the inverse temperature β must lie in [0, 1], got {beta}")
        self.kernel, self.observe = kernel, observe
        self.beta = torch.as_tensor(beta, dtype=torch.float64)

    @torch.no_grad()
    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        context = Context.of(context)
        kernel = self.kernel if isinstance(self.kernel, Kernel) else self.kernel(target)
        if state.log_prob is None:
            state = kernel.init(state.position)._replace(momentum=state.momentum)
        moving = kernel if self.beta == 1 else tempered(kernel, self.beta)
        new, info = moving.step(state, context.randomness.generator)
        if self.observe is not None:
            self.observe(kernel, info)
        if getattr(kernel, "persistence", 0.0) == 0:
            new = new._replace(momentum=state.momentum)
        log_ratio = self._log_ratio(kernel.density, state, new, context)
        return Transition.deterministic(new, log_ratio, **_summary(info))

    def _log_ratio(self, density: Density, old: Phase, new: Phase, context: Context) -> Tensor:
        """log γ_β(old) − log γ_β(new), zero where γ_β(old) = 0: such a chain stayed.  [...]"""
        if self.beta == 1:
            before, after = (state.log_density(density).double() for state in (old, new))
            return (before - after).where(before > -torch.inf, 0.0)
        old_base, old_gap = _base_and_gap(density, old, context)
        new_base, new_gap = _base_and_gap(density, new, context)
        log_ratio = old_base - new_base + self.beta * (old_gap - new_gap)
        return log_ratio.where(old_base + old_gap > -torch.inf, 0.0)


def _base_and_gap(density: Density, state: Phase, context: Context) -> tuple[Tensor, Tensor]:
    """log q(z) and log γ(z) − log q(z), in double precision, once for each state of a chain.  [...]"""
    base = density.base
    if base is None:
        raise ValueError("annealing needs a base distribution: build the target as Density(..., base=q0)")

    def compute() -> tuple[Tensor, Tensor]:
        log_q = base.finite_log_prob(state.position).double()
        return log_q, state.log_density(density).double() - log_q

    return context.at(state.position, density, compute)


def _summary(info: Info) -> Info:
    """The mean acceptance rate, NaN if the kernel reports none, and the cost of all chains together.  []"""
    rate = info.get("acceptance_rate", info.get("accepted", torch.tensor(torch.nan))).double().mean()
    nothing = torch.zeros((), dtype=torch.int64)
    return {
        "acceptance_rate": rate,
        "num_gradients": info.get("num_gradients", info.get("num_evaluations", nothing)).sum(),
    }


class Schedule(nn.Module):
    """Learned inverse temperatures 0 < β_1 < … < β_T < 1: cumulative sums of a softmax, even at first."""

    def __init__(self, num_temperatures: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(num_temperatures + 1))

    def forward(self) -> Tensor:
        """[T]"""
        return self.logits.softmax(0).cumsum(0)[:-1]


class Temperature(nn.Module):
    """One of the temperatures of a shared schedule, the same for all x."""

    def __init__(self, schedule: Schedule, index: int) -> None:
        super().__init__()
        self.schedule, self.index = schedule, index

    def forward(self, context: Context | None = None) -> Tensor:
        return self.schedule()[self.index]
