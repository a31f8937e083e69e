"""Weighted chains: every way of moving a sample pays one price, its log-ratio.

    log w = log γ(z_T) − log q0(z0) + Σ_t log_ratio_t,
    log_ratio_t = log R_t(old | new) − log F_t(new | old)

E[w] = Z = ∫γ for every choice of the reverse laws R_t, so E[log w] ≤ log Z (the auxiliary ELBO).
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from hmcvi.randomness import Randomness
from hmcvi.recompute import Cut, Gradients, RandomState, gradients, graft
from hmcvi.shelf import shelf


class Target(Protocol):
    """What a step may ask of the density γ it moves towards (see `hmcvi.Density`)."""

    @property
    def base(self) -> Target | None: ...

    def log_prob(self, position: Tensor) -> Tensor: ...

    def unmasked_log_prob(self, position: Tensor) -> Tensor: ...

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]: ...

    def unmasked_value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]: ...

    def parameters(self, position: Tensor) -> list[Tensor]: ...


class Phase(NamedTuple):
    """Where a chain is.  Leading dimensions are independent chains.

    `log_prob` and `grad` belong to `position` and are carried so that no step computes them again;
    they are None after a step that moved without needing them (a normalizing flow).
    """

    position: Tensor  # [..., d]
    momentum: Tensor | None = None  # [..., d]
    log_prob: Tensor | None = None  # log γ(position)  [...]
    grad: Tensor | None = None  # ∇ log γ(position)  [..., d]

    def evaluate(self, target: Target) -> Phase:
        """The same point with log γ and its gradient known."""
        if self.log_prob is not None and self.grad is not None:
            return self
        log_prob, grad = target.value_and_grad(self.position)
        return self._replace(log_prob=log_prob, grad=grad)

    def log_density(self, target: Target) -> Tensor:
        """log γ(position), computed only if no step has done so."""
        return target.log_prob(self.position) if self.log_prob is None else self.log_prob

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


class Context:
    """The data x that steps condition on, what networks made of it in this pass, and its random numbers.

    Steps of one chain share networks of x (mass, step size, first layers of reverse models);
    `context(network)` computes network(x) once per pass, with gradients if the pass has them.
    """

    def __init__(self, data: Tensor | None, randomness: Randomness | None = None) -> None:
        self.data, self.randomness = data, randomness or Randomness()
        self._differentiable = torch.is_grad_enabled()
        self._memo: dict[Callable[[Tensor], Tensor], Tensor] = {}

    @classmethod
    def of(cls, context: Tensor | Context | None) -> Context:
        return context if isinstance(context, Context) else cls(context)

    def __call__(self, network: Callable[[Tensor], Tensor]) -> Tensor:
        if self.data is None:
            raise ValueError("this step has a network of x: pass the data as context=x")
        if network not in self._memo:
            with torch.set_grad_enabled(self._differentiable):
                self._memo[network] = network(self.data)
        return self._memo[network]


class Step(nn.Module):
    """A differentiable move that knows its price.

    uses_force: whether it asks for ∇log γ at the position it is given (True), moves on without it
    (False), or leaves the position and the question to the next step (None).
    forgetful: whether it keeps little for its derivative anyway.
    """

    uses_force: bool | None = None
    forgetful: bool = False

    @abstractmethod
    def forward(self, state: Phase, target: Target, context: Tensor | Context | None = None) -> Transition:
        """Move `state` towards `target`, given the data `context` [..., context_dim]."""


class Chain(Step):
    """Composition of steps: threads the state, adds up the logs, collects the diagnostics.

    forgetful: whether a step is computed again when it is differentiated, instead of being kept; set by
    `hmcvi.flows.set_memory`.
    """

    forgetful = False

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        super().__init__()
        steps = list(steps)
        self.steps = nn.ModuleList(steps)
        answers = (step.uses_force for step in steps)
        self.uses_force = next((answer for answer in answers if answer is not None), None)

    def forward(self, state: Phase, target: Target, context: Tensor | Context | None = None) -> Transition:
        context = Context.of(context)
        zero = state.position.new_zeros(state.position.shape[:-1])
        log_ratio, log_choice, noise = zero, zero, zero
        reports: dict[str, list[Tensor]] = {}
        forget = self.forgetful and torch.is_grad_enabled()
        for step in self.steps:
            assert isinstance(step, Step)
            move = functools.partial(recomputed, step) if forget and not step.forgetful else step
            state, ratio, choice, zero_mean, info = move(state, target, context)
            log_ratio, log_choice, noise = log_ratio + ratio, log_choice + choice, noise + zero_mean
            for name, value in info.items():
                value = shelf.keep(value) if forget else value
                reports.setdefault(name, []).append(value if isinstance(step, Chain) else value[None])
        return Transition(
            state, log_ratio, log_choice, noise, {name: torch.cat(r) for name, r in reports.items()}
        )


def recomputed(step: Step, state: Phase, target: Target, context: Context) -> Transition:
    """step(state, target, context) of which no more is kept than where it started.

    It may depend on the state, its own parameters, what the context made of x, and the target.
    """
    random = RandomState(state.position.device)
    with torch.no_grad():
        transition = step(state, target, context)
    cut = Cut((state, target, context))
    read = [] if step.uses_force is None else target.parameters(state.position)
    own = list(dict.fromkeys([*filter(_trained, step.parameters()), *read]))
    parts = _parts(transition)
    moved = [i for i, part in enumerate(parts) if part is not None and all(part is not old for old in state)]

    def pull_back(weights: Gradients) -> Gradients:
        with torch.enable_grad(), random.again():
            again = _parts(step(*cut.copy))
        return gradients([again[i] for i in moved], [*cut.leaves, *own], weights)

    kept = [shelf.keep(parts[i]) for i in moved]
    for i, part in zip(moved, graft(kept, [*cut.tensors, *own], pull_back), strict=True):
        parts[i] = part
    *state_parts, log_ratio, log_choice, noise = parts
    return Transition(Phase(*state_parts), log_ratio, log_choice, noise, transition.info)


def _parts(transition: Transition) -> list[Any]:
    """Its tensors, some of the state's perhaps None."""
    return [*transition.state, transition.log_ratio, transition.log_choice, transition.noise]


def _trained(parameter: Tensor) -> bool:
    return parameter.requires_grad
