"""Download single files: resumed, verified by SHA-256, and put in place atomically."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from hmcvi.data.files import DataError, Store


class RemoteFile(NamedTuple):
    """A published file: its name on disk, its SHA-256 in hex, and the addresses of identical copies."""

    name: str
    sha256: str
    urls: tuple[str, ...]


class TransferError(Exception):
    """One transfer failed; `final` if asking the same address again cannot help."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


def obtain(remote: RemoteFile, store: Store, *aliases: str) -> Path:
    """The file if the store has it under its name or an alias, otherwise a fresh download."""
    path = store.find(remote.name, *aliases)
    if path is not None:
        return path
    if store.cache is None:
        raise DataError(
            f"{remote.name} was not found in {', '.join(map(str, store.folders))}; "
            f"pass download=True, or put the file there from {' or '.join(remote.urls)}"
        )
    return fetch(remote, store.cache)


def fetch(
    remote: RemoteFile,
    folder: str | os.PathLike[str],
    *,
    attempts: int = 3,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """Download to `<folder>/<name>.part`, verify, then rename; an existing `<folder>/<name>` is kept.

    A part file left by a broken transfer is resumed. All urls are tried in turn, up to `attempts` times,
    with `pause` seconds (doubling) in between. Only one process at a time may fetch a file.
    """
    folder = Path(folder)
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    if target.exists():
        return target
    with _writing(part):
        folder.mkdir(parents=True, exist_ok=True)
    if part.exists() and _sha256(part) == remote.sha256:
        return _put_in_place(part, target)

    pending = list(remote.urls)
    failures: dict[str, str] = {}
    for attempt in range(attempts):
        if attempt and pending:
            time.sleep(pause * 2 ** (attempt - 1))
        for url in tuple(pending):
            try:
                resumed = _transfer(url, part, timeout)
                _verify(part, remote.sha256, final=not resumed)
            except TransferError as error:
                failures[url] = str(error)
                if error.final:
                    pending.remove(url)
            else:
                return _put_in_place(part, target)
    reasons = "; ".join(f"{url}: {reason}" for url, reason in failures.items())
    raise DataError(
        f"could not download {remote.name} ({reasons}); "
        f"check the network, or put the file by hand into {folder}"
    )


def _transfer(url: str, part: Path, timeout: float) -> bool:
    """Append to the part file what it lacks, or write it afresh; returns whether earlier bytes were kept."""
    start = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"User-Agent": "hmcvi"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    with _open(request, part, timeout) as response:
        resumed = response.status == 206
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise TransferError("the server sent another range of bytes than asked for", final=True)
        expected = response.headers.get("Content-Length")
        received = 0
        with _writing(part), part.open("ab" if resumed else "wb") as file:
            for chunk in _chunks(response):
                received += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    if expected is not None and received < int(expected):
        raise TransferError(f"the connection ended after {received} of {expected} bytes")
    return resumed


def _open(request: Request, part: Path, timeout: float) -> HTTPResponse:
    try:
        return urlopen(request, timeout=timeout)
    except HTTPError as error:
        error.close()
        if error.code == 416:
            # the part file is longer than the file itself
            part.unlink(missing_ok=True)
        final = 400 <= error.code < 500 and error.code not in (408, 416, 429)
        raise TransferError(f"HTTP {error.code} {error.reason}", final) from error
    except (OSError, HTTPException) as error:
        raise TransferError(str(error) or repr(error)) from error


def _chunks(response: HTTPResponse, size: int = 1 << 18) -> Iterator[bytes]:
    try:
        while chunk := response.read(size):
            yield chunk
    except (OSError, HTTPException) as error:
        raise TransferError(str(error) or repr(error)) from error


def _verify(part: Path, sha256: str, final: bool) -> None:
    found = _sha256(part)
    if found != sha256:
        part.unlink()
        raise TransferError(f"SHA-256 should be {sha256} but is {found}", final)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _put_in_place(part: Path, target: Path) -> Path:
    with _writing(part):
        os.replace(part, target)
    return target


@contextmanager
def _writing(part: Path) -> Iterator[None]:
    """A failed write keeps the part file, so that the next call resumes it."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"could not write {part}: {error}; free some room or choose another folder, then try again: "
            "what is already there is kept and resumed"
        ) from error
