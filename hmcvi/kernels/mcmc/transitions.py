"""Transitions of Hamiltonian Monte Carlo as functions of their random numbers, which can be compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.energies import System, accept
from hmcvi.dynamics.integrators import Integrator, Splitting
from hmcvi.dynamics.metrics import Metric
from hmcvi.internal.compile import Compiled, scan
from hmcvi.kernels.mcmc.kernel import Info

TransitionFunction = Callable[
    [Phase, Metric, Tensor, Tensor, Tensor, Tensor | None, Tensor | None], tuple[Phase, Info]
]
TransitionsFunction = Callable[
    [Phase, Metric, Tensor, Tensor, Tensor, Tensor | None, Tensor | None], tuple[Phase, Phase, Info]
]
Round = tuple[list[Tensor], Info]


def make_transition(density: Density, integrator: Integrator, num_steps: int) -> TransitionFunction:
    """One transition as a function of noise ~ N(0, I) [..., d] and uniform ~ U(0, 1) [...].

    kept: α of persistent momenta [], None where they are forgotten.
    """
    num_gradients = num_steps * getattr(integrator, "num_stages", 1)

    def transition(
        state: Phase,
        metric: Metric,
        step_size: Tensor,
        noise: Tensor,
        uniform: Tensor,
        beta: Tensor | None,
        kept: Tensor | None,
    ) -> tuple[Phase, Info]:
        system = System(density, metric, beta, masked=False)
        momentum = metric.color(noise)
        if kept is not None:
            assert state.momentum is not None
            momentum = kept * state.momentum + (1 - kept.square()).sqrt() * momentum
        start = state._replace(momentum=momentum)
        end = integrator(system, start, step_size, num_steps)
        info = accept(system.energy(start), system.energy(end), uniform)
        info["num_gradients"] = torch.full_like(info["accepted"], num_gradients, dtype=torch.int64)
        new = end.where(info["accepted"], start._replace(momentum=-momentum))
        return new if kept is not None else new._replace(momentum=None), info

    return transition


def make_transitions(transition: TransitionFunction) -> TransitionsFunction:
    """As many transitions as there are noises [K, ..., d] and uniforms [K, ...], one after another.

    For densities that cost less than the call of a program.
    -> the last state, and all states and reports [K, ...]
    """

    def transitions(
        start: Phase,
        metric: Metric,
        step_size: Tensor,
        noises: Tensor,
        uniforms: Tensor,
        beta: Tensor | None,
        kept: Tensor | None,
    ) -> tuple[Phase, Phase, Info]:
        def one(parts: list[Tensor], numbers: tuple[Tensor, Tensor]) -> tuple[list[Tensor], Round]:
            new, info = transition(_joined(parts), metric, step_size, *numbers, beta, kept)
            parts = [part.clone() for part in _parts(new)]  # a loop wants no tensor twice
            return parts, ([part.clone() for part in parts], info)

        parts, (trace, infos) = scan(one, _parts(start), (noises, uniforms))
        return _joined(parts), _joined(trace), infos

    return transitions


class Stepwise:
    """A trajectory as a loop over one compiled step, whatever its length."""

    def __init__(self, integrator: Splitting) -> None:
        self.num_stages = integrator.num_stages
        self._step = Compiled(integrator, "the trajectory")

    def __call__(self, system: System, start: Phase, step_size: Tensor, num_steps: int) -> Phase:
        for _ in range(num_steps):
            start = self._step(system, start, step_size, 1)
        return start


def plain(state: Phase) -> Phase:
    """To the compiler views, as first gradients may be, and tensors with gaps are of other kinds."""

    def own(part: Tensor | None) -> Tensor | None:
        if part is None or (part.is_contiguous() and not part._is_view()):
            return part
        return part.clone(memory_format=torch.contiguous_format)

    position, *others = map(own, state)
    assert position is not None
    return Phase(position, *others)


def _parts(state: Phase) -> list[Tensor]:
    """What there is of it, the momentum last."""
    return [x for x in (state.position, state.log_prob, state.grad, state.momentum) if x is not None]


def _joined(parts: list[Tensor]) -> Phase:
    position, log_prob, grad, *momentum = parts
    return Phase(position, momentum[0] if momentum else None, log_prob, grad)
