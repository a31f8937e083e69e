"""A disk that fails for a while costs a warning, and nothing that was computed."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hmcvi.internal import appending, storage
from hmcvi.internal.appending import AppendedFile
from hmcvi.internal.storage import CheckpointError, load_json, save_json
from hmcvi.training.metrics import Metrics
from hmcvi.training.tensorboard import TensorBoard
from tests.training.conftest import PAPER, ROOT, train


class Full:
    """A disk that takes nothing while it is full, of files whose names contain a word."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
        self.full, self.refused = True, 0
        write, replace = os.write, os.replace

        def refuse() -> None:
            if self.full:
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def written(descriptor: int, content: Any) -> int:
            if word in os.readlink(f"/proc/self/fd/{descriptor}"):
                write(descriptor, content[: len(content) // 2])  # as much as there is room for
                refuse()
            return write(descriptor, content)

        def replaced(source: Any, target: Any) -> None:
            if word in str(target):
                refuse()
            replace(source, target)

        monkeypatch.setattr(appending.os, "write", written)
        monkeypatch.setattr(storage.os, "replace", replaced)


def test_what_a_disk_did_not_take_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, file = Full(monkeypatch, "a.txt"), AppendedFile(tmp_path / "a.txt")
    for piece in (b"one\n", b"two\n"):
        file.add(piece)
        file.flush()
    assert (tmp_path / "a.txt").read_bytes() == b""  # no half of a piece
    disk.full = False
    monkeypatch.undo()
    file.add(b"three\n")
    file.flush()
    assert (tmp_path / "a.txt").read_bytes() == b"one\ntwo\nthree\n"
    out = capsys.readouterr().out
    assert out.count("warning: could not write") == 1 and "can be written again" in out


@pytest.mark.parametrize("word", ["tfevents", "metrics.csv"])
def test_curves_outlive_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    with monkeypatch.context() as patch:
        disk = Full(patch, word)
        board = TensorBoard(tmp_path, 1)
        board.scalars(1, {"a": 1.0})
        board.flush()
        assert disk.refused
    board.scalars(2, {"a": 2.0})
    board.close()
    assert [line.split(",")[0] for line in (tmp_path / "metrics.csv").read_text().split()] == [
        "epoch",
        "1",
        "2",
    ]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.value for event in events.Scalars("a")] == [1.0, 2.0]


def test_metrics_with_bytes_that_are_no_text_are_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_bytes(b"epoch,name,value\r\n1,a,2\r\n\xff\x00,\x00\r\n\xb2,a,1\r\n")
    Metrics(tmp_path, 2).close()
    assert (tmp_path / "metrics.csv").read_bytes() == b"epoch,name,value\r\n1,a,2\r\n"


@pytest.mark.parametrize("word", ["scores.pt", "summary.json", "chain.pt", "vae.pt"])
def test_results_that_no_disk_takes_are_an_error_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: list[str], word: str
) -> None:
    """The report is printed, and the end can be repeated."""
    with monkeypatch.context() as patch:
        Full(patch, word)
        code, out, err = train("--config", str(PAPER), *small)
    assert code == 2 and err.count("\n") == 1 and "could not be written: make room" in err
    assert "test set, nats per image" in out and "warning: could not write" in out
    code, _, err = train("--resume", str(tmp_path / "run"))
    assert code == 0, err
    assert (tmp_path / "run" / "summary.json").exists() and (tmp_path / "run" / "chain.pt").exists()


def test_results_are_written_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: list[str]
) -> None:
    disk = Full(monkeypatch, "vae-scores.pt")
    real = storage.save_json
    from hmcvi.training import run

    def room(*arguments: Any) -> None:
        disk.full = False
        real(*arguments)

    monkeypatch.setattr(run, "save_json", room)
    code, out, err = train("--config", str(PAPER), *small)
    assert disk.refused and "warning: could not write" in out
    assert code == 2 or (tmp_path / "run" / "vae-scores.pt").exists(), err


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
sys.path.insert(0, sys.argv[1])
from hmcvi.commands.train import main
sys.exit(main(sys.argv[2:]))
"""


def test_a_limit_on_the_size_of_files_is_one_clear_error(small: list[str]) -> None:
    assert resource.RLIMIT_FSIZE
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(ROOT), *small], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2, done.stderr[-1000:]
    assert done.stderr.startswith("error: could not write") and done.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path, small: list[str]) -> None:
    (tmp_path / "file").touch()
    code, _, err = train(*small, f"runs={tmp_path}/file")
    assert code == 2 and err.startswith("error: cannot make the run folder") and err.count("\n") == 1


def test_json_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    save_json({"bound": -1.5, "é": [None, True]}, path)
    assert load_json(path) == {"bound": -1.5, "é": [None, True]}
    path.write_text(path.read_text().replace("-1.5", "-1.4"))
    with pytest.raises(CheckpointError, match="edited"):
        load_json(path)
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_text(json.dumps(content))
    assert load_json(path)["bound"] == -1.4
    for text in ("", "[1]", "{", "NaN", "\x00", "[" * 100_000, '"a"'):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=r"a\.json"):
            load_json(path)


def test_the_seed_is_in_every_file(finished: Path) -> None:
    for name in ("vae.pt", "chain.pt", "checkpoint.pt", "chain-scores.pt"):
        assert isinstance(torch.load(finished / name, weights_only=True)["seed"], int), name
    assert load_json(finished / "summary.json")["seed"] == 0
