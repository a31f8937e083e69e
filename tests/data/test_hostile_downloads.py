"""Servers that lie, stall or lead elsewhere, names that leave the folder, and files that have changed."""

from __future__ import annotations

import gzip
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hmcvi.data import DataError, RemoteFile, download, fetch, load_images, mnist

CONTENT = b"0123456789" * 500
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@contextmanager
def answering(*parts: bytes, pause: float = 0.0) -> Iterator[str]:
    """The address of a server that sends these bytes to whoever asks, then closes the connection."""
    listening = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(10_000)
                try:
                    for part in parts:
                        connection.sendall(part)
                        ended.wait(pause)
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/blob"
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def get(url: str, folder: Path, size: int | None = None, **settings: float) -> Path:
    return fetch(RemoteFile("blob", DIGEST, (url,), size), folder, attempts=2, pause=0, **settings)


def ok(*headers: bytes) -> bytes:
    return b"\r\n".join((b"HTTP/1.0 200 OK", *headers, b"", b""))


@pytest.mark.parametrize("length", [b"-1", b"many", b"1e9", b"\xb2", b"9" * 5000, b""])
def test_lengths_that_are_none(tmp_path: Path, length: bytes) -> None:
    with answering(ok(b"Content-Length: " + length), CONTENT) as url, pytest.raises(DataError):
        get(url, tmp_path)


def test_more_bytes_than_the_file_has_are_not_taken(tmp_path: Path) -> None:
    with (
        answering(ok(), *[CONTENT] * 1000) as url,
        pytest.raises(DataError, match="more than the 5000 bytes"),
    ):
        get(url, tmp_path, len(CONTENT))
    assert (tmp_path / "blob.part").stat().st_size <= len(CONTENT)
    with answering(ok(b"Content-Length: 6000"), CONTENT) as url, pytest.raises(DataError, match="announced"):
        get(url, tmp_path / "other", len(CONTENT))


def test_a_trickle_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though every single byte comes in time."""
    monkeypatch.setattr(download, "WINDOW", 0.2)
    with answering(ok(), *[b"x"] * 1000, pause=0.02) as url, pytest.raises(DataError, match="slower than"):
        get(url, tmp_path)


def test_all_attempts_together_have_a_deadline(tmp_path: Path) -> None:
    began = time.monotonic()
    with answering(ok(), *[b"x" * 100] * 1000, pause=0.02) as url, pytest.raises(DataError, match="too long"):
        get(url, tmp_path, deadline=0.3)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/blob", "FILE:///etc/passwd"])
def test_redirects_lead_to_http_alone(tmp_path: Path, target: str) -> None:
    answer = f"HTTP/1.0 302 Found\r\nLocation: {target}\r\n\r\n".encode()
    with answering(answer) as url, pytest.raises(DataError, match=r"not http or https|not allowed"):
        get(url, tmp_path)
    with pytest.raises(DataError, match="not one of http or https"):
        get(target, tmp_path)


@pytest.mark.parametrize("name", ["../blob", "/tmp/blob", "a/b", "..", ""])
def test_names_do_not_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="not the name of a file"):
        fetch(RemoteFile(name, DIGEST, ("http://127.0.0.1:9/",)), tmp_path)


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "blob.part").symlink_to(tmp_path / "victim")
    with answering(ok(), CONTENT) as url, pytest.raises(DataError, match="in the way"):
        get(url, tmp_path)
    assert (tmp_path / "victim").read_text() == "precious"


def test_files_on_disk_are_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A raw file has no checksum of its own: one flipped bit of it would be another image."""
    whole = bytes((0, 0, 8, 1)) + (7).to_bytes(4, "big") + bytes(range(7))
    stem = "t10k-labels-idx1-ubyte"
    monkeypatch.setitem(mnist.UNPACKED, stem, (len(whole), hashlib.sha256(whole).hexdigest()))
    remote = RemoteFile(f"{stem}.gz", "0" * 64, (), 10**6, mnist.UNPACKED[stem])
    (tmp_path / stem).write_bytes(whole)
    assert remote.check(tmp_path / stem)
    (tmp_path / stem).write_bytes(whole[:-1] + b"\x02")
    with pytest.raises(DataError, match=f"{stem} is damaged, or of another data set"):
        remote.check(tmp_path / stem)
    for kind in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3"):
        (tmp_path / f"{kind}-ubyte.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(DataError):
        load_images("mnist", tmp_path, download=False)
    (tmp_path / stem).write_bytes(whole[:-1])  # of another length: data of the user's own
    assert remote.check(tmp_path / stem)
