"""Several transitions as one program, for densities that cost less than the call of a program."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.dynamics.metrics import Metric
from hmcvi.kernels.mcmc.kernel import Info

Transition = Callable[
    [Phase, Metric, Tensor, Tensor, Tensor, Tensor | None, Tensor | None], tuple[Phase, Info]
]
Several = Callable[
    [Phase, Metric, Tensor, Tensor, Tensor, Tensor | None, Tensor | None], tuple[Phase, Phase, Info]
]
Round = tuple[list[Tensor], Info]


def make_several(transition: Transition) -> Several:
    """As many transitions as there are noises [K, ..., d] and coins [K, ...], one after another.

    -> the last state, and all states and reports [K, ...]
    """

    def several(
        start: Phase,
        metric: Metric,
        step_size: Tensor,
        noises: Tensor,
        coins: Tensor,
        beta: Tensor | None,
        kept: Tensor | None,
    ) -> tuple[Phase, Phase, Info]:
        def one(parts: list[Tensor], randomness: tuple[Tensor, Tensor]) -> tuple[list[Tensor], Round]:
            new, info = transition(_joined(parts), metric, step_size, *randomness, beta, kept)
            parts = [part.clone() for part in _parts(new)]  # a loop wants no tensor twice
            return parts, ([part.clone() for part in parts], info)

        parts, (trace, infos) = _scan(one, _parts(start), (noises, coins))
        return _joined(parts), _joined(trace), infos

    return several


def _parts(state: Phase) -> list[Tensor]:
    """What there is of it, the momentum last."""
    return [x for x in (state.position, state.log_prob, state.grad, state.momentum) if x is not None]


def _joined(parts: list[Tensor]) -> Phase:
    position, log_prob, grad, *momentum = parts
    return Phase(position, momentum[0] if momentum else None, log_prob, grad)


def _scan(
    one: Callable[[list[Tensor], tuple[Tensor, Tensor]], tuple[list[Tensor], Round]],
    parts: list[Tensor],
    inputs: tuple[Tensor, Tensor],
) -> tuple[list[Tensor], Round]:
    """The last of parts ← one(parts, input), and what each round gave, stacked."""
    if torch.compiler.is_compiling():
        from torch._higher_order_ops import scan

        return scan(one, parts, inputs)
    rounds = []
    for noise, coin in zip(*inputs, strict=True):
        parts, given = one(parts, (noise, coin))
        rounds.append(given)
    traces, infos = zip(*rounds, strict=True)
    stacked = {name: torch.stack([info[name] for info in infos]) for name in infos[0]}
    return parts, ([torch.stack(values) for values in zip(*traces, strict=True)], stacked)
