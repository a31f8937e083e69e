"""Progress of long work: a bar on a terminal; elsewhere a few lines of text, or silence."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from torch import Tensor
from tqdm import tqdm

from hmcvi.sampling.convergence import bulk_ess, rhat

REFRESH_SECONDS = 0.2
LOOK_SECONDS = 3.0
LOOK_DRAWS, LOOK_COLUMNS, LOOK_NUMBERS = 20, 16, 100_000  # least draws, most coordinates and numbers
LINES = 20  # of long work, where there is no terminal
Numbers = Mapping[str, Tensor | float]  # of a tensor the mean is shown, computed only then


class Progress:
    """Progress of `total` units of work, each of `parts` parts, of which `done` parts are behind us.

    shown: False for silence, and for no work at all.
    lines: about how many lines of text to print where standard output is not a terminal; with 0 the bar goes
    to standard error, and there is silence where that is not a terminal.
    """

    def __init__(
        self,
        name: str,
        total: int,
        *,
        unit: str = "it",
        parts: int = 1,
        done: int = 0,
        shown: bool = True,
        lines: int = 0,
    ) -> None:
        self.name, self.total, self.unit, self.parts, self.done = name, total, unit, parts, done
        stream = sys.stdout if lines else sys.stderr
        shown, terminal = shown and total > 0, stream.isatty()
        self._bar = (
            tqdm(total=total * parts, initial=done, desc=name, file=stream, dynamic_ncols=True)
            if shown and terminal
            else None
        )
        self._every = max(1, total // lines) if shown and lines and not terminal else 0  # units per line
        self._began = self._refreshed = time.monotonic()
        self._first, self._waiting = done, 0
        self._numbers: Numbers = {}

    @property
    def silent(self) -> bool:
        return self._bar is None and not self._every

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._refresh(self._bar)
            self._bar.close()

    def advance(self, count: int = 1, numbers: Numbers | None = None) -> None:
        """Go on by `count` parts, and show the numbers."""
        self.done += count
        self._waiting += count
        if numbers is not None:
            self.show(numbers)
        if self._bar is not None and time.monotonic() - self._refreshed > REFRESH_SECONDS:
            self._refresh(self._bar)

    def show(self, numbers: Numbers) -> None:
        """Numbers as they stand after the parts done so far."""
        self._numbers = numbers
        number = self.done // self.parts
        if self._every and (number % self._every == 0 or number in (1, self.total)):
            each = (time.monotonic() - self._began) / max(1, self.done - self._first)
            left = {"min left": f"{each * (self.total * self.parts - self.done) / 60:.1f}"}
            items = "  ".join(f"{name} {value}" for name, value in (_texts(numbers) | left).items())
            count = f"{number:>{len(str(self.total))}}/{self.total}"
            print(f"{self.name}  {self.unit} {count}  {items}", flush=True)

    def say(self, text: str) -> None:
        """A message that does not tear the bar."""
        if self._bar is not None:
            self._bar.write(text, file=self._bar.fp)
        else:
            print(text, flush=True)

    def _refresh(self, bar: Any) -> None:
        bar.set_postfix(_texts(self._numbers), refresh=False)
        bar.update(self._waiting)
        self._waiting, self._refreshed = 0, time.monotonic()


def _texts(numbers: Numbers) -> dict[str, str]:
    values = {name: float(v.double().mean() if isinstance(v, Tensor) else v) for name, v in numbers.items()}
    return {name: f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.4g}" for name, v in values.items()}


class Convergence:
    """R-hat and ESS per second of the draws so far, the worst of some coordinates, looked at now and then.

    draws(): [chains, draws, d].  Looks are LOOK_SECONDS apart, or so far that they take a hundredth of the
    time.
    """

    def __init__(self, draws: Callable[[], Tensor]) -> None:
        self._draws, self._numbers = draws, dict[str, Tensor | float]()
        self._began = time.monotonic()
        self._next = self._began + LOOK_SECONDS

    def numbers(self) -> Mapping[str, Tensor | float]:
        """What the last look found."""
        now = time.monotonic()
        if now >= self._next:
            self._look(now - self._began)
            done = time.monotonic()
            self._next = done + max(LOOK_SECONDS, 100 * (done - now))
        return self._numbers

    def _look(self, seconds: float) -> None:
        position = self._draws()
        chains, draws, dim = position.shape
        if chains < 2 or draws < LOOK_DRAWS:
            return
        some = position[..., :: -(-dim // LOOK_COLUMNS)]
        most = max(LOOK_DRAWS, LOOK_NUMBERS // (chains * some.shape[-1]))
        last = some[:, -most:]  # in a row: spaced ones cannot tell how correlated they are
        ess = bulk_ess(last).min() * draws / last.shape[1]
        self._numbers = {"R-hat": rhat(some[:, :: -(-draws // most)]).max(), "ESS/s": ess / seconds}


class KernelProgress:
    """Progress of a kernel, with acceptance, step size, gradients and divergences so far.

    draws(): those made so far [chains, draws, d], to show how well they have converged.
    """

    def __init__(self, name: str, total: int, shown: bool, draws: Callable[[], Tensor] | None = None) -> None:
        self._progress, self._diverged = Progress(name, total, shown=shown), 0
        self._convergence = None if draws is None else Convergence(draws)

    def advance(self, kernel: object, info: Mapping[str, Tensor], count: int = 1) -> None:
        if self._progress.silent:
            return
        numbers: dict[str, Tensor | float] = {}
        if "acceptance_rate" in info:
            numbers["accept"] = info["acceptance_rate"]
        if (step_size := getattr(kernel, "step_size", None)) is not None:
            numbers["step"] = step_size
        if "num_gradients" in info:
            numbers["gradients"] = info["num_gradients"]
        if "diverged" in info:
            self._diverged += int(info["diverged"].sum())
        if self._diverged:
            numbers["diverged"] = self._diverged
        if self._convergence is not None:
            numbers |= self._convergence.numbers()
        self._progress.advance(count, numbers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.__exit__(*error)
