"""Files: whole or refused, written by one process at a time, and without traces of dead ones."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from hmcvi.internal import storage
from hmcvi.internal.storage import (
    CheckpointError,
    load,
    load_json,
    remove_stale,
    save,
    save_json,
    write_atomically,
)

STATE = {"weights": torch.arange(30.0), "epoch": 3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(STATE, tmp_path / "c.pt")
    return tmp_path / "c.pt"


def test_any_flipped_bit_is_found(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(8 * len(whole)):
        if place % 8 and place % 61:  # every byte, and more
            continue
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged") as error:
            load(path)
        assert "\n" not in str(error.value)


def test_every_cut_and_every_addition_is_found(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"damaged|not a checkpoint"):
            load(path)
    for more in (b"\0", b"x" * 40, whole):
        path.write_bytes(whole + more[:-1] + b"?")
        with pytest.raises(CheckpointError, match="damaged"):
            load(path)


def test_torch_reads_files_with_a_digest(path: Path) -> None:
    for source in (path, io.BytesIO(path.read_bytes())):
        assert torch.load(source, weights_only=True)["epoch"] == 3
    assert torch.load(path, weights_only=True, mmap=True)["weights"].equal(STATE["weights"])


def test_files_without_a_digest_are_read(path: Path) -> None:
    torch.save(STATE, path)
    assert load(path)["epoch"] == 3


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="not a file"):
        load(tmp_path / "c.pt")


def test_threads_do_not_write_each_others_files(tmp_path: Path) -> None:
    path, failures = tmp_path / "a.json", []

    def write(letter: str) -> None:
        try:
            for _ in range(30):
                write_atomically(letter.encode() * 100_000, path)
        except CheckpointError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            assert len(set(content := path.read_bytes())) == 1 and len(content) == 100_000
    assert not failures
    assert os.listdir(tmp_path) == ["a.json"]


def test_links_laid_in_the_way_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(storage.secrets, "token_hex", lambda _: "0" * 16)
    trap = tmp_path / f".{storage._host()}-{os.getpid()}-{'0' * 16}.tmp"
    trap.symlink_to(victim)
    with pytest.raises(CheckpointError, match="File exists"):
        write_atomically(b"content", tmp_path / "c")
    assert victim.read_text() == "precious"


def test_the_folder_is_flushed_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed, real = [], os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append((os.path.isdir(f"/proc/self/fd/{descriptor}"), (tmp_path / "c").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(b"content", tmp_path / "c")
    assert flushed == [(False, False), (True, True)]


def test_temporary_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    host, token = storage._host(), "0123456789abcdef"
    names = {
        "dead": f".{host}-{int(dead.stdout)}-{token}.tmp",
        "alive": f".{host}-{os.getpid()}-{token}.tmp",
        "elsewhere": f".00000000-1-{token}.tmp",
        "elsewhere, long ago": f".00000000-2-{token}.tmp",
        "user's": "notes.tmp",
    }
    for name in names.values():
        (tmp_path / name).touch()
    os.utime(tmp_path / names["elsewhere, long ago"], (0, 0))
    remove_stale(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        names[kept] for kept in ("alive", "elsewhere", "user's")
    }


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(b"content", tmp_path / "c")
    assert not os.listdir(tmp_path)


def test_folders_that_cannot_be_flushed_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(b"content", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"content"


def test_json_has_no_tokens_that_are_not_json(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    save_json({"a": nan, "b": [1.5, -inf, {"c": (inf, 2)}], "d": random.Random(0).random()}, tmp_path / "a")

    def refuse(token: str) -> None:
        raise AssertionError(token)

    content = json.loads((tmp_path / "a").read_text(), parse_constant=refuse)
    assert content["a"] is None and content["b"] == [1.5, None, {"c": [None, 2]}]
    assert content["d"] == random.Random(0).random()


def test_json_with_numbers_as_keys_can_be_read(tmp_path: Path) -> None:
    save_json({"of": {1: 0.5, 8: 0.25, 32: 0.125}}, tmp_path / "a")
    assert load_json(tmp_path / "a") == {"of": {"1": 0.5, "8": 0.25, "32": 0.125}}
