"""metrics.csv: every number once, also after an interruption."""

from __future__ import annotations

import csv
from pathlib import Path

from hmcvi.training.metrics import Metrics


def test_a_run_leaves_its_curves(finished: Path) -> None:
    with open(finished / "metrics.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    curve = {int(line["epoch"]): float(line["value"]) for line in lines if line["name"] == "bound/train"}
    assert curve.keys() == {1, 2, 3, 4} and all(value < 0 for value in curve.values())
    assert {"test/vae/bound", "test/chain/refinement_gain"} <= {line["name"] for line in lines}
    keys = [(line["epoch"], line["name"]) for line in lines]
    assert len(set(keys)) == len(keys)


def test_what_was_written_after_the_checkpoint_is_dropped(tmp_path: Path) -> None:
    def write(first: int, epochs: range) -> None:
        metrics = Metrics(tmp_path, first)
        for epoch in epochs:
            metrics.write(epoch, {"a": 0.1 * epoch + first})
        metrics.close()

    write(1, range(1, 5))
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("5,a")  # cut off
    write(3, range(3, 6))
    write(0, range(9, 10))  # appended
    assert (tmp_path / "metrics.csv").read_text().split() == [
        "epoch,name,value", "1,a,1.1", "2,a,1.2", "3,a,3.3", "4,a,3.4", "5,a,3.5", "9,a,0.9",
    ]  # fmt: skip
