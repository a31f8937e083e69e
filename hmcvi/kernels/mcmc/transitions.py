"""Transitions of Hamiltonian Monte Carlo as functions of their random numbers, which can be compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.energies import System, accept
from hmcvi.dynamics.integrators import Splitting
from hmcvi.dynamics.metrics import Metric
from hmcvi.internal.compile import Compiled, scan
from hmcvi.kernels.mcmc.kernel import Info
from hmcvi.kernels.mcmc.written_out import TracedDensity, WrittenOut


class RandomNumbers(NamedTuple):
    """What a transition draws; of several transitions, [K, ...] of each.

    kept: α of persistent momenta [], None where they are forgotten.
    """

    num_steps: int | Tensor  # L  []
    normal: Tensor  # n ~ N(0, I)  [..., d]
    uniform: Tensor  # u ~ U(0, 1)  [...]
    kept: Tensor | None = None


TransitionFunction = Callable[[Phase, Metric, Tensor, Tensor | None, RandomNumbers], tuple[Phase, Info]]
TransitionsFunction = Callable[
    [Phase, Metric, Tensor, Tensor | None, RandomNumbers], tuple[Phase, Phase, Info]
]
Round = tuple[list[Tensor], Info]


def make_transition(
    density: Density, integrator: Splitting, num_steps: int | None = None
) -> TransitionFunction:
    """One transition as a function of the state, the settings and its random numbers.

    num_steps: in place of the random one, to be fixed in a program.
    """

    def transition(
        state: Phase, metric: Metric, step_size: Tensor, beta: Tensor | None, numbers: RandomNumbers
    ) -> tuple[Phase, Info]:
        system = System(density, metric, beta, masked=False)
        momentum, kept = metric.color(numbers.normal), numbers.kept
        if kept is not None:
            assert state.momentum is not None
            momentum = kept * state.momentum + (1 - kept.square()).sqrt() * momentum
        start = state._replace(momentum=momentum)
        length = numbers.num_steps if num_steps is None else num_steps
        if isinstance(length, int):
            end = integrator(system, start, step_size, length)
        else:
            end = integrator.repeated(system, start, step_size, length, _by_column(density))
        end = system.weighed(end)
        info = accept(system.energy(start), system.energy(end), numbers.uniform)
        num_gradients = length * integrator.num_stages
        info["num_gradients"] = torch.zeros_like(info["accepted"], dtype=torch.int64) + num_gradients
        if kept is None:
            return end._replace(momentum=None).where(info["accepted"], state), info
        return end.where(info["accepted"], start._replace(momentum=-momentum)), info

    return transition


def _by_column(density: Density) -> bool:
    return isinstance(density, WrittenOut) and density.by_column


def make_transitions(
    density: Density, integrator: Splitting, num_steps: int | None = None
) -> TransitionsFunction:
    """As many transitions as there are random numbers [K, ...], one after another.

    -> the last state, and all states and reports [K, ...]
    """
    transition = make_transition(density, integrator, num_steps)

    def transitions(
        start: Phase, metric: Metric, step_size: Tensor, beta: Tensor | None, numbers: RandomNumbers
    ) -> tuple[Phase, Phase, Info]:
        def one(parts: list[Tensor], each: tuple[Tensor, ...]) -> tuple[list[Tensor], Round]:
            new, info = transition(_joined(parts), metric, step_size, beta, RandomNumbers(*each))
            parts = _own(_parts(new))
            return parts, (_own(parts), info)

        given = tuple(part for part in numbers if isinstance(part, Tensor))
        parts, (trace, infos) = scan(one, _parts(start), given)
        return _joined(parts), _joined(trace), infos

    return transitions


class TransitionPrograms:
    """Transitions as compiled programs, for any step size, mass of one kind and temperature.

    num_steps: of all trajectories, if that is to be part of the programs; else they are for any lengths.
    any_size: for any number of chains too.
    """

    def __init__(
        self, density: Density, integrator: Splitting, num_steps: int | None, any_size: bool
    ) -> None:
        traced = TracedDensity(density)

        def compiled(make: Callable[..., Callable[..., Any]], loops: bool) -> Compiled[..., Any]:
            def source(density: WrittenOut, *given: Any) -> Any:
                return make(density, integrator, num_steps)(*given)

            def prepare(start: Phase, *given: Any) -> tuple[Any, ...]:
                return traced.at(start.position), start, *given

            eager = make(density, integrator, num_steps)
            return Compiled(eager, "HMC", any_size, loops, source, prepare)

        self.one: TransitionFunction = compiled(make_transition, loops=False)
        self.several: TransitionsFunction = compiled(make_transitions, loops=True)


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


def _own(parts: list[Tensor]) -> list[Tensor]:
    """Copies without gaps: a loop wants no tensor twice."""
    return [part.clone(memory_format=torch.contiguous_format) for part in parts]


def _joined(parts: list[Tensor]) -> Phase:
    position, log_prob, grad, *momentum = parts
    return Phase(position, momentum[0] if momentum else None, log_prob, grad)
