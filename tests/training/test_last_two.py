"""The right run goes on, from a checkpoint that is whole, with one writer at a time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hmcvi.internal.lock import locked
from hmcvi.training import CheckpointError, InterruptGuard, Run, load_config, run
from hmcvi.training.checkpoint import LastTwo, load, save
from tests.training.conftest import train

ROOT = Path(__file__).parents[2]


@pytest.fixture
def again(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_run_keeps_its_last_two_checkpoints(tmp_path: Path) -> None:
    files = LastTwo(tmp_path)
    for epoch in range(3):
        files.save({"epoch": epoch})
    assert (load(files.path)["epoch"], load(files.before)["epoch"]) == (2, 1)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-before.pt", "checkpoint.pt"]


def test_a_damaged_one_never_replaces_a_whole_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for epoch in range(2):
        LastTwo(tmp_path).save({"epoch": epoch})
    files = LastTwo(tmp_path)
    flip(files.path)
    assert files.load()["epoch"] == 0
    assert (
        "checkpoint.pt is damaged" in (said := capsys.readouterr().out)
        and "going on from the one before" in said
    )
    files.save({"epoch": 7})
    assert (load(files.path)["epoch"], load(files.before)["epoch"]) == (7, 0)
    flip(files.path)
    flip(files.before)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt is damaged"):
        files.load()


def test_disks_without_links_keep_two_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    files = LastTwo(tmp_path)
    for epoch in range(3):
        files.save({"epoch": epoch})
    assert (load(files.path)["epoch"], load(files.before)["epoch"]) == (2, 1)


def test_a_run_goes_on_from_the_checkpoint_before(again: Path) -> None:
    weights = load(again / "chain.pt")["model"]
    flip(again / "checkpoint.pt")
    code, out, err = train("--resume", str(again))
    assert code == 0, err
    assert "going on from the one before" in out
    found = load(again / "chain.pt")["model"]
    assert all(torch.equal(weights[name], found[name]) for name in weights)


def test_other_training_images_are_refused(again: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = run.images_of

    def other(*arguments):  # type: ignore[no-untyped-def]
        images = real(*arguments)
        images.train[5, 7] += 0.5
        return images

    monkeypatch.setattr(run, "images_of", other)
    code, _, err = train("--resume", str(again))
    assert code == 2 and "trained on other images" in err
    state = load(again / "checkpoint.pt")
    del state["trainer"]["data"]  # as earlier versions wrote it
    save(state, again / "checkpoint.pt")
    assert train("--resume", str(again))[0] == 0


HOLD = """
import sys, time
from pathlib import Path
from hmcvi.internal.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_writer_per_run_folder(again: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(again)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        code, _, err = train("--resume", str(again))
        assert code == 2
        assert f"in use by process {holder.pid} on" in err
        with pytest.raises(CheckpointError, match="in use by"), InterruptGuard() as guard:
            Run.resume(again).train(guard)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert train("--resume", str(again))[0] == 0  # a dead process holds nothing


def test_a_lock_ends_with_its_block(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            locked(tmp_path),
            pytest.raises(CheckpointError, match=f"process {os.getpid()}"),
            locked(tmp_path),
        ):
            pass
    with pytest.raises(CheckpointError, match="cannot write"), locked(tmp_path / "nowhere"):
        pass


def test_a_run_clears_away_what_dead_writers_left(again: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    from hmcvi.internal import storage

    left = again / f".{storage._host()}-{dead.pid}-{'0' * 16}.tmp"
    left.touch()
    assert train("--resume", str(again))[0] == 0
    assert not left.exists()


def test_digests_cost_little(tmp_path: Path, small: list[str]) -> None:
    """Of a run of a second with a checkpoint after every batch, far more than are usual."""
    from hmcvi.internal import storage

    spent, real = [], storage.hashlib.sha256

    def timed(*arguments):  # type: ignore[no-untyped-def]
        began = time.perf_counter()
        found = real(*arguments)
        spent.append(time.perf_counter() - began)
        return found

    began = time.perf_counter()
    with pytest.MonkeyPatch.context() as patch, InterruptGuard() as guard:
        patch.setattr(storage.hashlib, "sha256", timed)
        Run.create(load_config(overrides=[*small, "train.checkpoint_seconds=0.2"])).train(guard)
    assert len(spent) > 5
    assert sum(spent) < 0.01 * (time.perf_counter() - began)
