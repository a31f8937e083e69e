"""Event files of TensorBoard that are written without a thread, and survive a disk that fails for a while."""

from __future__ import annotations

import io
import itertools
import os
import socket
import time
from pathlib import Path
from typing import Any

from hmcvi.internal.appending import AppendedFile

FLUSH_BYTES = 1 << 20
_NUMBERS = itertools.count()


def open_events(folder: Path, purge_step: int | None = None) -> Any:
    """A SummaryWriter of torch.  purge_step: from which on earlier files are hidden."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from torch.utils.tensorboard import FileWriter, SummaryWriter

    class Writer(FileWriter):
        def __init__(self, file: _EventFile) -> None:
            self.event_writer = file

    class Summary(SummaryWriter):
        file_writer: Any
        all_writers: Any

        def _get_file_writer(self) -> FileWriter:
            self.file_writer, self.all_writers = writer, {str(folder): writer}
            return writer

    writer = Writer(_EventFile(folder))
    writer.add_event(Event(file_version="brain.Event:2"))
    if purge_step is not None:
        writer.add_event(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))
    return Summary(str(folder))


class _EventFile:
    """What torch's FileWriter needs of TensorBoard's EventFileWriter."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder = folder
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        self._file = AppendedFile(folder / name)
        self._buffer = io.BytesIO()
        self._records = RecordWriter(self._buffer)

    def get_logdir(self) -> str:
        return str(self._folder)

    def add_event(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        if self._buffer.tell() > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        self._file.add(self._buffer.getvalue())
        self._buffer.seek(0)
        self._buffer.truncate()
        self._file.flush()

    def close(self) -> None:
        self.flush()

    def reopen(self) -> None:
        """There is nothing to open: every flush opens the file."""
