"""Ctrl-C and SIGTERM as a question the loop asks between batches."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupted(Exception):
    """The user asked to stop; everything is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number  # 130 for Ctrl-C


class InterruptGuard:
    """Within it the first Ctrl-C sets `requested`; a second one raises KeyboardInterrupt at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested: int | None = None

    def __enter__(self) -> InterruptGuard:
        self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            raise KeyboardInterrupt
        self.requested = number

    def check(self) -> None:
        if self.requested is not None:
            raise Interrupted(self.requested)
