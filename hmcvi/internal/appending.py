"""Files that grow at their end: what a disk does not take is kept, and written when it takes it again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MOST_PENDING = 64 << 20  # bytes kept in memory while the disk takes none


class AppendedFile:
    """Appends bytes to a file.  A disk that fails is a warning, once; later flushes try again.

    A write that was cut off is taken back, so that the file holds whole pieces alone.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.failed = path, False
        self._pending: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Append with the next flush."""
        self._pending.append(piece)

    def flush(self) -> None:
        if not self._pending:
            return
        content = b"".join(self._pending)
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                self._append(descriptor, content)
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self.failed:
                print(
                    f"warning: could not write {self.path} ({error.strerror}); tried again later", flush=True
                )
            self.failed = True
            self._pending = [content] if len(content) <= MOST_PENDING else []
            return
        if self.failed:
            print(f"{self.path} can be written again, and has all that was missing", flush=True)
        self.failed, self._pending = False, []

    @staticmethod
    def _append(descriptor: int, content: bytes) -> None:
        before, written = os.fstat(descriptor).st_size, 0
        try:
            while written < len(content):
                written += os.write(descriptor, memoryview(content)[written:])
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, before)
            raise
