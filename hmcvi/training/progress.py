"""How training and evaluation show themselves: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

LINES_PER_STAGE = 20


class Progress:
    """Progress of one stage: epochs of so many batches, of which `done` are behind us.

    unit: what an epoch is called.
    """

    def __init__(self, name: str, epochs: int, batches: int, done: int, unit: str = "epoch") -> None:
        self.name, self.epochs, self.unit = name, epochs, unit
        self.began, self.first = time.monotonic(), done / batches
        self.every = max(1, epochs // LINES_PER_STAGE)
        self.bar = (
            tqdm(
                total=epochs * batches,
                initial=done,
                desc=name,
                file=sys.stdout,
                dynamic_ncols=True,
                unit="batch",
            )
            if sys.stdout.isatty()
            else None
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def advance(self, batches: int = 1) -> None:
        if self.bar is not None:
            self.bar.update(batches)

    def report(self, number: int, values: dict[str, float]) -> None:
        """Report after epoch `number`; values that are not known are left out by the caller."""
        shown = {name: _format(value) for name, value in values.items()}
        if self.bar is not None:
            self.bar.set_postfix(shown)
        elif number % self.every == 0 or number in (1, self.epochs):
            each = (time.monotonic() - self.began) / (number - self.first)
            shown["min left"] = f"{each * (self.epochs - number) / 60:.1f}"
            items = "  ".join(f"{name} {value}" for name, value in shown.items())
            count = f"{number:>{len(str(self.epochs))}}/{self.epochs}"
            print(f"{self.name}  {self.unit} {count}  {items}", flush=True)

    def say(self, text: str) -> None:
        """A message that does not tear the bar."""
        if self.bar is not None:
            self.bar.write(text)
        else:
            print(text, flush=True)


def _format(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
