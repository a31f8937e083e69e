"""Checkpoints survive crashes and full disks, and never execute anything."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from hmcvi.models import VAE
from hmcvi.training.checkpoint import CheckpointError, load, load_weights, save


def test_round_trip(tmp_path: Path) -> None:
    state = {"weights": torch.arange(3.0), "epoch": 3, "order": None, "names": ["a"], "inf": float("-inf")}
    save(state, tmp_path / "c.pt")
    loaded = load(tmp_path / "c.pt")
    assert loaded["weights"].equal(state["weights"])
    assert {k: v for k, v in loaded.items() if k != "weights"} == {
        k: v for k, v in state.items() if k != "weights"
    }


def test_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.pt"
    save({"epoch": 1}, path)

    def no_space(descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(CheckpointError, match=r"No space left.*last good one is kept"):
        save({"epoch": 2}, path)
    assert load(path) == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.99])
def test_truncated(tmp_path: Path, fraction: float) -> None:
    path = tmp_path / "c.pt"
    save({"weights": torch.randn(1000)}, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(CheckpointError, match=r"c\.pt"):
        load(path)


class Malice:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["MALICE"],)


@pytest.mark.parametrize("as_torch", [True, False])
def test_malicious_pickle_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_torch: bool
) -> None:
    trace = tmp_path / "executed"
    monkeypatch.setenv("MALICE", str(trace))
    path = tmp_path / "c.pt"
    if as_torch:
        torch.save({"model": Malice()}, path)
    else:
        path.write_bytes(pickle.dumps({"model": Malice()}))
    with pytest.raises(CheckpointError):
        load(path)
    assert not trace.exists()


def test_other_architecture() -> None:
    weights = VAE(12, 3, hidden=(8,)).state_dict()
    with pytest.raises(CheckpointError, match="another architecture"):
        load_weights(VAE(12, 4, hidden=(8,)), weights, "the checkpoint")


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load(tmp_path / "c.pt")
