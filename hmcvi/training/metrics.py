"""The curves of TensorBoard as text: metrics.csv, a line for each number."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hmcvi.internal.appending import AppendedFile
from hmcvi.internal.storage import CheckpointError, write_atomically

HEADER = ("epoch", "name", "value")


class Metrics:
    """Appends epoch, name, value to metrics.csv in the folder of a run.

    first_epoch: that of the first line to come; what an interrupted run wrote from there on is dropped.

        pandas.read_csv("runs/NAME/metrics.csv").pivot(index="epoch", columns="name", values="value")
    """

    def __init__(self, folder: Path, first_epoch: int) -> None:
        path = folder / "metrics.csv"
        self.file = AppendedFile(path)
        kept = [] if first_epoch <= 1 else [line for line in _read(path) if int(line[0]) < first_epoch]
        if first_epoch > 0 and path.exists():
            with contextlib.suppress(CheckpointError):  # then old lines stay, and new ones follow
                write_atomically(_text([HEADER, *kept]), path)
        elif not path.exists() or path.stat().st_size == 0:
            self.file.add(_text([HEADER]))

    def write(self, epoch: int, values: Mapping[str, float]) -> None:
        self.file.add(_text((epoch, name, f"{value:.8g}") for name, value in values.items()))

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.flush()


def _text(lines: Iterable[Sequence[object]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(lines)
    return buffer.getvalue().encode()


def _read(path: Path) -> Iterable[list[str]]:
    """Whole lines of an earlier file, without its header."""
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        lines = (line.replace("\0", "") for line in file)
        return [line for line in csv.reader(lines) if len(line) == 3 and line[0].isdecimal()]
