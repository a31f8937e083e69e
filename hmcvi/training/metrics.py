"""The curves of TensorBoard as text: metrics.csv, a line for each number."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

HEADER = ("epoch", "name", "value")


class Metrics:
    """Appends epoch, name, value to metrics.csv in the folder of a run.

    first_epoch: that of the first line to come; what an interrupted run wrote from there on is dropped.

        pandas.read_csv("runs/NAME/metrics.csv").pivot(index="epoch", columns="name", values="value")
    """

    def __init__(self, folder: Path, first_epoch: int) -> None:
        path = folder / "metrics.csv"
        kept = [] if first_epoch <= 1 else [line for line in _read(path) if int(line[0]) < first_epoch]
        self.file: TextIO = path.open("w" if first_epoch > 0 else "a", newline="")
        self.lines = csv.writer(self.file)
        if first_epoch > 0 or path.stat().st_size == 0:
            self.lines.writerows([HEADER, *kept])

    def write(self, epoch: int, values: Mapping[str, float]) -> None:
        self.lines.writerows((epoch, name, f"{value:.8g}") for name, value in values.items())

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _read(path: Path) -> Iterable[list[str]]:
    """Whole lines of an earlier file, without its header."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return [line for line in csv.reader(file) if len(line) == 3 and line[0].isdigit()]
