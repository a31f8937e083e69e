"""Files of results that a disk may not take at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hmcvi.internal.storage import CheckpointError


class ResultFiles:
    """Writes files; one that the disk does not take is a warning, tried again with the next one."""

    def __init__(self) -> None:
        self.waiting: dict[Path, Callable[[], None]] = {}

    def write(self, path: Path, action: Callable[[], None]) -> None:
        """Write a file by `action`, and those that could not be written before."""
        self.waiting[path] = action
        for waiting in list(self.waiting):
            try:
                self.waiting[waiting]()
                del self.waiting[waiting]
            except (CheckpointError, OSError) as error:
                print(f"warning: {error}; the run goes on, and tries again", flush=True)

    def refuse_waiting(self, folder: Path) -> None:
        """Say at the end of a run what no disk took."""
        if self.waiting:
            names = ", ".join(path.name for path in self.waiting)
            raise CheckpointError(
                f"the run ended, but {names} could not be written: make room, then repeat its end with "
                f"--resume {folder}"
            )
