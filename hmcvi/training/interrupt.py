"""Ctrl-C, SIGTERM and the end of the time allowed as a question the loop asks between batches."""

from __future__ import annotations

import signal
import time
from types import FrameType


class Interrupted(Exception):
    """The user asked to stop; everything is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number if signal_number else 0  # 130 for Ctrl-C


class InterruptGuard:
    """Within it the first Ctrl-C sets `requested`; a second one raises KeyboardInterrupt at once.

    requested: the number of the signal, OUT_OF_TIME after `seconds` (None: never), else None.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)
    OUT_OF_TIME = 0

    def __init__(self, seconds: float | None = None) -> None:
        self._requested: int | None = None
        self._deadline = None if seconds is None else time.monotonic() + seconds

    @property
    def requested(self) -> int | None:
        late = self._deadline is not None and time.monotonic() > self._deadline
        return self.OUT_OF_TIME if late and self._requested is None else self._requested

    def __enter__(self) -> InterruptGuard:
        self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested is not None:
            raise KeyboardInterrupt
        self._requested = number

    def request(self, number: int) -> None:
        """As if the signal had come here: another process got it."""
        self._requested = number

    def check(self) -> None:
        if (requested := self.requested) is not None:
            raise Interrupted(requested)
