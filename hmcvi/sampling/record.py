"""The transitions of a run and the record of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hmcvi.internal.settings import restored
from hmcvi.internal.storage import CheckpointError
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Info, Kernel

LAST = ("energy", "log_prob")
FIRST_CALL, MOST_NUMBERS = 4, 2**19  # transitions of a compiled call at first; numbers that describe one
SHORT = 0.1  # seconds, of a call that may become longer


@dataclass(frozen=True, eq=False)
class RunEnd:
    """Where a run stands: what the next transition depends on besides the kernel."""

    state: Any  # of the chains, as the kernel has it; from a file, as a dict
    generator: Tensor  # state of the random numbers
    settings: dict[str, Any]  # chosen by warm-up
    made: int = 0  # of earlier releases: transitions from here that the run has behind it


class Transitions:
    """`next()` is a transition, `several()` are some in one call, `end()` is where the run then stands."""

    def __init__(self, kernel: Kernel, position: Tensor, end: RunEnd, goes_on: bool = False) -> None:
        """position: where the chains once began, [chains, d].

        goes_on: after a stop, during which the density may have become another one.
        """
        if end.made:
            raise CheckpointError(
                "the draws end within a chunk of transitions of an earlier release, which this one cannot "
                "go on from: start a new run from draws.position[:, -1]"
            )
        self.kernel, self._settings = kernel, end.settings
        template = kernel.init(position) if isinstance(end.state, dict) else None
        self._generator = torch.Generator(position.device)
        try:
            self._state = restored(template, end.state)
            self._generator.set_state(end.generator)
        except (AttributeError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"the draws do not end in a state of this kernel ({error})") from None
        if goes_on:
            check_density(kernel, self._state)
        self._most = max(FIRST_CALL, MOST_NUMBERS // position.numel())
        self._count = FIRST_CALL

    @property
    def in_one_call(self) -> bool:
        """Whether the kernel makes many transitions by one program."""
        return isinstance(self.kernel, HMC) and self.kernel.in_one_call

    def next(self) -> tuple[Any, Info]:
        """The state after one more transition, and its report."""
        self._state, info = self.kernel.step(self._state, self._generator)
        return self._state, info

    def several(self, most: int, multiple: int = 1) -> tuple[Any, Info]:
        """The states after each of at most `most` transitions, and reports.  [n, ...], n a multiple

        As many as take a fraction of a second.  Their number changes no draw.
        """
        count = min(most, max(1, self._count // multiple) * multiple)
        began = time.perf_counter()
        steps: Callable[..., tuple[Any, Any, Info]] = self.kernel.steps  # type: ignore[attr-defined]
        self._state, states, infos = steps(self._state, self._generator, count)
        took = time.perf_counter() - began
        self._count = min(2 * self._count, self._most) if took < SHORT else max(FIRST_CALL, self._count // 2)
        return states, infos

    def end(self) -> RunEnd:
        return RunEnd(self._state, self._generator.get_state(), self._settings)


def check_content(position: Tensor, stats: Mapping[str, Tensor], start: Any, end: RunEnd) -> None:
    """Refuse what are no draws, as an edited file may hold them.

    position: [chains, draws, d]; stats: {name: [chains, draws]}
    """
    shape = position.shape
    if len(shape) != 3 or start.position.shape != (shape[0], shape[2]) or not position.is_floating_point():
        raise ValueError(f"draws {list(shape)} do not belong to chains {list(start.position.shape)}")
    if any(values.shape != shape[:2] for values in stats.values()):
        raise ValueError("statistics of other draws")
    for name in ("num_warmup", "thin", "seed"):
        if type(value := getattr(start, name)) is not int or value < (name == "thin"):
            raise ValueError(f"{name} is {value!r}")
    if type(end.made) is not int or not isinstance(end.settings, dict) or end.generator.dtype != torch.uint8:
        raise ValueError("it does not say where the run stands")


@torch.no_grad()
def check_density(kernel: Kernel, state: Any) -> None:
    """Refuse to go on with another density than the one that chains in `state` have had.

    A density whose values are random cannot be told from another one, and goes on.
    """
    known, again = state.log_prob, _log_prob_at(kernel, state)
    if again is None or same_values(known, again):
        return
    twice = _log_prob_at(kernel, state)
    if twice is not None and same_values(again, twice):
        chain = int((known - again).nan_to_num(torch.inf).abs().flatten().argmax())
        before, now = (float(value.flatten()[chain]) for value in (known, again))
        raise CheckpointError(
            f"the draws are of another density: log_prob was {before:.6g} where chain {chain} stands, and is "
            f"{now:.6g} now; go on with the density, and the data in it, of the first call"
        )


def _log_prob_at(kernel: Kernel, state: Any) -> Tensor | None:
    """log γ where chains stand, if the kernel can tell.  [chains]"""
    if not hasattr(state, "auxiliary"):
        return kernel.init(state.position).log_prob
    at = getattr(kernel, "at", None)
    return None if at is None else at(state.position, state.auxiliary).log_prob


def same_values(one: Tensor, other: Tensor) -> bool:
    """But for rounding, which differs between machines."""
    if one.shape != other.shape:
        return False
    tolerance = torch.finfo(one.dtype).eps ** 0.4
    return torch.allclose(one, other.to(one), rtol=tolerance, atol=tolerance, equal_nan=True)


class Record:
    """Positions and statistics of `num_draws` draws, each the last of `thin` transitions.

    Of those transitions counts (num_…, diverged) are added up, rates averaged; the energy is the last one's.
    """

    def __init__(self, num_draws: int, thin: int) -> None:
        self.num_draws, self.thin, self.count = num_draws, thin, 0
        self._position: Tensor | None = None  # [draws, chains, d]: a draw is written in one piece
        self._stats: dict[str, Tensor] = {}
        self._sums: Info = {}

    def observe(self, info: Info) -> None:
        """A transition, kept or not."""
        if self.thin == 1:
            self._sums = info
            return
        for name, value in info.items():
            if name in LAST:
                self._sums[name] = value
            else:
                share = value.long() if _is_count(name) else value / self.thin
                self._sums[name] = self._sums[name] + share if name in self._sums else share

    def keep(self, state: Any) -> Info:
        """The draw to keep, and its statistics."""
        info = {**self._sums, "log_prob": state.log_prob}
        self._write(self.count, state.position, info)
        self.count, self._sums = self.count + 1, {}
        return info

    def keep_all(self, states: Any, infos: Info) -> Info:
        """Draws in a row, of `thin` transitions each [n · thin, chains, ...], and their statistics."""
        kept = {name: self._thinned(name, value) for name, value in infos.items()}
        kept["log_prob"] = states.log_prob[self.thin - 1 :: self.thin]
        rows = slice(self.count, self.count + len(kept["log_prob"]))
        self._write(rows, states.position[self.thin - 1 :: self.thin], kept)
        self.count = rows.stop
        return kept

    def _thinned(self, name: str, values: Tensor) -> Tensor:
        if self.thin == 1 or name in LAST:
            return values[self.thin - 1 :: self.thin]
        rounds = values.unflatten(0, (-1, self.thin))
        return rounds.long().sum(1) if _is_count(name) else (rounds / self.thin).sum(1)

    def _write(self, place: int | slice, position: Tensor, info: Info) -> None:
        skipped = 0 if isinstance(place, int) else 1  # leading dimensions that count draws
        if self._position is None:
            self._position = position.new_empty(self.num_draws, *position.shape[skipped:])
            self._stats = {
                name: torch.empty(
                    self.num_draws, *value.shape[skipped:], dtype=_dtype(name, value), device=value.device
                )
                for name, value in info.items()
            }
        self._position[place] = position
        for name, value in info.items():
            self._stats[name][place] = value

    def first(self, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """[chains, draws, d] and {name: [chains, draws]} of the first `count` kept."""
        assert self._position is not None
        stats = {name: values[:count].transpose(0, 1) for name, values in self._stats.items()}
        return self._position[:count].transpose(0, 1), stats


def _is_count(name: str) -> bool:
    return name == "diverged" or name.startswith("num_")


def _dtype(name: str, value: Tensor) -> torch.dtype:
    return torch.int64 if _is_count(name) else value.dtype
