"""Finished parts are read instead of made again, unless they were made for something else."""

from __future__ import annotations

from pathlib import Path

import torch

from experiments.resumable import once


def test_a_part_is_made_once_for_a_key(tmp_path: Path) -> None:
    made = []

    def work() -> dict[str, object]:
        made.append(1)
        return {"count": len(made), "draws": torch.arange(3)}

    file = tmp_path / "parts" / "one.pt"
    first = once(file, {"seed": 0}, work)
    again = once(file, {"seed": 0}, work)
    assert first["count"] == again["count"] == 1 and torch.equal(again["draws"], torch.arange(3))
    assert once(file, {"seed": 1}, work)["count"] == 2
    assert once(file, {"seed": 1}, work)["count"] == 2
