"""Weighted chains: every way of moving a sample pays one price, its log-ratio.

    log w = log γ(z_T) − log q0(z0) + Σ_t log_ratio_t,
    log_ratio_t = log R_t(old | new) − log F_t(new | old)

E[w] = Z = ∫γ for every choice of the reverse distributions R_t, so E[log w] ≤ log Z (the auxiliary ELBO).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hmcvi.density import Density
from hmcvi.internal.arena import arena
from hmcvi.internal.checks import one_of
from hmcvi.internal.compile import Programs
from hmcvi.internal.context import Context
from hmcvi.internal.recompute import recomputed

MEMORY = ("store", "checkpoint", "reversible")


class Phase(NamedTuple):
    """Where a chain is.  Leading dimensions are independent chains.

    `log_prob` and `grad` belong to `position` and are carried so that no step computes them again;
    they are None after a step that moved without needing them (a normalizing flow).
    """

    position: Tensor  # [..., d]
    momentum: Tensor | None = None  # [..., d]
    log_prob: Tensor | None = None  # log γ(position)  [...]
    grad: Tensor | None = None  # ∇ log γ(position)  [..., d]

    def evaluate(self, target: Density) -> Phase:
        """The same point with log γ and its gradient known."""
        if self.log_prob is not None and self.grad is not None:
            return self
        log_prob, grad = target.finite_value_and_grad(self.position)
        return self._replace(log_prob=log_prob, grad=grad)

    def log_density(self, target: Density) -> Tensor:
        """log γ(position), computed only if no step has done so."""
        return target.finite_log_prob(self.position) if self.log_prob is None else self.log_prob

    def where(self, mask: Tensor, other: Phase) -> Phase:
        """This point where `mask` [...] holds, the other one elsewhere; what one does not know is None."""
        vector_mask = mask[..., None]
        masks = (vector_mask, vector_mask, mask, vector_mask)
        return Phase(*(_where(m, a, b) for m, a, b in zip(masks, self, other, strict=True)))  # type: ignore[arg-type]


def _where(mask: Tensor, a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None else a.where(mask, b)


class Transition(NamedTuple):
    """What a step did and what it costs."""

    state: Phase
    log_ratio: Tensor  # log R(old | new) − log F(new | old)  [...]
    log_choice: Tensor  # log-probability of the discrete choices taken (0 if there were none)
    noise: Tensor  # zero-mean part of log_ratio; a single-sample ELBO may subtract it
    info: Mapping[str, Tensor]  # diagnostics [...]; from a Chain [number of reports, ...]; no step reads it

    @classmethod
    def deterministic(cls, state: Phase, log_ratio: Tensor, **info: Tensor) -> Transition:
        """A step that drew nothing."""
        zero = torch.zeros_like(log_ratio)
        return cls(state, log_ratio, zero, zero, info)


class Step(nn.Module):
    """A differentiable move that knows its price.

    uses_force: whether it asks for ∇log γ at the position it is given (True), moves on without it
    (False), or leaves the position and the question to the next step (None).
    uses_density: whether, without the force, it asks for log γ there.
    reversible: whether its derivative can be taken on the way back from where it ended.
    approximate_force: whether its forces are not the target's, so that of the target it needs none.
    """

    uses_force: bool | None = None
    uses_density: bool = False
    reversible: bool = False
    approximate_force: bool = False

    @abstractmethod
    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        """Move `state` towards `target`, given the data `context` [..., context_dim]."""


class Chain(Step):
    """Composition of steps: threads the state, adds up the logs, collects the diagnostics.

    memory: how it remembers what its gradient needs.
        store: everything, as torch does.
        checkpoint: where each step started; the step is computed again.
        reversible: the same, but trajectories keep only their ends and are followed back, one force at a
        time, so that memory does not grow with their length; up to rounding, which grows with it.
        Only first derivatives can be taken of the last two.
    compile: differentiate trajectories as one compiled program each, forces included.
    """

    def __init__(self, steps: Iterable[Step] = (), memory: str = "store", compile: bool = False) -> None:
        super().__init__()
        one_of("memory", memory, MEMORY)
        steps = list(steps)
        self.steps, self.memory = nn.ModuleList(steps), memory
        self.programs = Programs() if compile else None
        first = next((step for step in steps if step.uses_force is not None), None)
        self.uses_force = None if first is None else first.uses_force
        self.uses_density = first is not None and first.uses_density

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        outer = Context.of(context)
        memory = outer.memory if self.memory == "store" else self.memory
        context = outer.remembering(memory, self.programs or outer.programs)
        forget = memory != "store" and torch.is_grad_enabled()
        zero = state.position.new_zeros(state.position.shape[:-1])
        log_ratio, log_choice, noise = zero, zero, zero
        reports: dict[str, list[Tensor]] = {}
        for step in self.steps:
            assert isinstance(step, Step)
            returns = step.reversible and memory == "reversible"
            move = _recomputed if forget and not returns and not isinstance(step, Chain) else _kept
            state, ratio, choice, zero_mean, info = move(step, state, target, context)
            log_ratio, log_choice, noise = log_ratio + ratio, log_choice + choice, noise + zero_mean
            for name, value in info.items():
                value = arena.keep(value) if forget else value
                reports.setdefault(name, []).append(value if isinstance(step, Chain) else value[None])
        return Transition(
            state, log_ratio, log_choice, noise, {name: torch.cat(r) for name, r in reports.items()}
        )


def _kept(step: Step, state: Phase, target: Density, context: Context) -> Transition:
    transition: Transition = step(state, target, context)
    return transition


def _recomputed(step: Step, state: Phase, target: Density, context: Context) -> Transition:
    """The same, of which no more is kept than where it started.

    It may depend on the state, its own parameters, what the context made of x, and the target.
    """
    parameters: list[Tensor] = [parameter for parameter in step.parameters() if parameter.requires_grad]
    if step.uses_force is not None:
        parameters += target.parameters(state.position)
    transition: Transition = recomputed(step, (state, target, context), parameters)
    return transition


class Origin(NamedTuple):
    """Where K chains started: z0 ~ q0."""

    position: Tensor  # z0  [K, ..., d]
    log_q0: Tensor  # log q0(z0)  [K, ...]
    base: Density | None  # q0 as a density


class Weights(NamedTuple):
    """K chains for each of B data: all tensors [K, ...]."""

    log_weight: Tensor  # log γ(z_T) − log q0(z0) + Σ log_ratio; −inf for a chain that failed
    log_choice: Tensor  # log-probability of what acceptance steps chose
    noise: Tensor  # zero-mean part of log_weight
    initial: Tensor | None = None  # log γ(z0) − log q0(z0), had the chain stopped at its start; no gradient
    transition: Transition | None = None  # of the whole chain, from its first state to its last
    origin: Origin | None = None  # where the chains started


def weigh(
    chain: Step,
    start: Phase,
    log_q0: Tensor,
    target: Density,
    context: Tensor | Context | None = None,
    noise: Tensor | float = 0.0,
) -> Weights:
    """log w = log γ(z_T) − log q0(z0) + Σ_t log_ratio_t, with E[w] = ∫γ.

    start: z0 ~ q0 [..., d].  log_q0: log q0(z0) [...].  noise: the zero-mean part of −log q0(z0), if known.
    """
    if chain.uses_force and chain.approximate_force:
        with torch.no_grad():  # only to be reported
            start = start._replace(log_prob=start.log_density(target))
    elif chain.uses_force:
        start = start.evaluate(target)
    elif chain.uses_density:
        start = start._replace(log_prob=start.log_density(target))
    transition: Transition = chain(start, target, context)
    log_weight = transition.log_ratio + transition.state.log_density(target) - log_q0
    initial = None if start.log_prob is None else (start.log_prob - log_q0).detach()
    origin = Origin(start.position, log_q0, target.base)
    return Weights(log_weight, transition.log_choice, transition.noise + noise, initial, transition, origin)
