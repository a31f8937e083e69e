"""Files of draws: whole or refused, and never executed."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hmcvi import Density
from hmcvi.internal import storage
from hmcvi.internal.storage import CheckpointError
from hmcvi.kernels import HMC, Compose, LinearSlice, RandomWalkMetropolis
from hmcvi.sampling import Draws
from tests.support.sampling_runs import BANANA, assert_same_draws, quick

KERNEL = HMC(BANANA, 0.3, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    quick(KERNEL, 5).save(tmp_path / "draws.pt")
    return tmp_path / "draws.pt"


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_file_is_refused(path: Path, seed: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: random.Random(seed).randrange(len(content))])
    with pytest.raises(CheckpointError, match="damaged"):
        Draws.load(path)


def test_a_file_of_something_else_is_refused(path: Path) -> None:
    for content in (b"", b"position", pickle.dumps({"position": 1})):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"damaged|not a checkpoint|holds no draws"):
            Draws.load(path)
    storage.save({"model": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="holds no draws: it lacks end, position"):
        Draws.load(path)


class Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("write", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_malicious_file_executes_nothing(path: Path, tmp_path: Path, write: Any) -> None:
    write({"position": Payload(tmp_path / "executed")}, path)
    with pytest.raises(CheckpointError, match="damaged or holds more than tensors and numbers"):
        Draws.load(path, KERNEL)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("part", "entry", "value"),
    [
        ("end", "settings", {"kernel": "HMC"}),
        ("end", "settings", {"kernel": "HMC", "settings": {"step": torch.ones(())}, "parts": []}),
        ("end", "unknown", 1),
        ("start", "unknown", 1),
        ("end", "settings", 3),
    ],
)
def test_a_file_of_another_version_is_refused(path: Path, part: str, entry: str, value: object) -> None:
    content = torch.load(path, weights_only=True)
    content[part][entry] = value
    torch.save(content, path)
    with pytest.raises(CheckpointError):
        Draws.load(path, KERNEL)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (RandomWalkMetropolis(BANANA, 0.3), "made by HMC, not by RandomWalkMetropolis"),
        (Compose(KERNEL, LinearSlice(BANANA, 1.0)), "made by HMC, not by Compose"),
        (HMC(Density(lambda v: v["a"].sum(-1), shapes={"a": (3,)}), 0.3, 3), "other variables"),
    ],
)
def test_another_kernel_is_refused(path: Path, other: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Draws.load(path, other)


def test_to_go_on_takes_a_kernel(path: Path) -> None:
    with pytest.raises(ValueError, match=r"kernel is needed: Draws.load\(path, kernel\).resume"):
        Draws.load(path).resume(3)


def test_a_failing_disk_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = Draws.load(path), os.fsync

    def full(descriptor: int) -> None:
        real(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        quick(KERNEL, 8).save(path)
    assert_same_draws(Draws.load(path), before)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_folder_that_does_not_exist_is_found_out_before_the_work(tmp_path: Path) -> None:
    def log_prob(z: torch.Tensor) -> torch.Tensor:
        raise AssertionError("work was done")

    with pytest.raises(ValueError, match="folder that does not exist"):
        quick(HMC(Density(log_prob), 0.3), 3, checkpoint=tmp_path / "nowhere" / "run.pt")


def test_numbers_of_numpy_can_be_saved(tmp_path: Path) -> None:
    three = np.int64(3)
    draws = quick(HMC(BANANA, 0.3, three), three, three, thin=three, seed=three, checkpoint=tmp_path / "a.pt")
    assert_same_draws(Draws.load(tmp_path / "a.pt"), draws)


def test_only_the_draws_are_saved(tmp_path: Path) -> None:
    """Not the memory that was set aside for draws that a callback cut off."""
    draws = quick(KERNEL, 100_000, callback=lambda index, *_: index == 9)
    draws.save(tmp_path / "a.pt")
    assert len(draws) == 10
    assert (tmp_path / "a.pt").stat().st_size < 50_000
