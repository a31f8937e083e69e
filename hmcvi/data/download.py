"""Download single files: resumed, verified by SHA-256, and put in place atomically."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from hmcvi.data.files import REMEDY, DataError, Store

SCHEMES = ("http://", "https://")
LARGEST = 1 << 32  # bytes of a file whose length is not known
SLOWEST = 1000.0  # bytes per second, over a window of so many seconds
WINDOW = 30.0


class RemoteFile(NamedTuple):
    """A published file: its name on disk, its SHA-256 in hex, and the addresses of identical copies.

    size: its length in bytes, if known.  unpacked: length and SHA-256 of what a .gz file holds.
    """

    name: str
    sha256: str
    urls: tuple[str, ...]
    size: int | None = None
    unpacked: tuple[int, str] | None = None

    def check(self, path: Path) -> Path:
        """A file on disk, refused if it has the length of the published one and another content."""
        known: dict[int | None, str] = {self.size: self.sha256}
        if self.unpacked is not None:
            known[self.unpacked[0]] = self.unpacked[1]
        expected = known.get(path.stat().st_size)
        if expected is not None and (found := _sha256(path)) != expected:
            raise DataError(
                f"{path} is damaged, or of another data set: its SHA-256 is {found}, not {expected}; "
                f"{REMEDY} (data of your own are npz:FILE)"
            )
        return path


class TransferError(Exception):
    """One transfer failed; `final` if asking the same address again cannot help."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


def obtain(remote: RemoteFile, store: Store, *aliases: str) -> Path:
    """The file if the store has it under its name or an alias, otherwise a fresh download."""
    path = store.find(remote.name, *aliases)
    if path is not None:
        return remote.check(path)
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
    deadline: float = 3600.0,
) -> Path:
    """Download to `<folder>/<name>.part`, verify, then rename; an existing `<folder>/<name>` is kept.

    A part file left by a broken transfer is resumed. All urls are tried in turn, up to `attempts` times,
    with `pause` seconds (doubling) in between. Only one process at a time may fetch a file.

    A transfer ends that brings nothing for `timeout` seconds, less than 1 kB per second for half a minute,
    or more bytes than the file has; all of them together end after `deadline` seconds.
    """
    if Path(remote.name).name != remote.name or remote.name in ("", ".", ".."):
        raise DataError(f"{remote.name!r} is not the name of a file: it would leave {folder}")
    folder, ends = Path(folder), time.monotonic() + deadline
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
            time.sleep(min(pause * 2 ** (attempt - 1), max(0.0, ends - time.monotonic())))
        for url in tuple(pending):
            try:
                resumed = _transfer(
                    url, part, min(timeout, max(0.1, ends - time.monotonic())), remote.size, ends
                )
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


def _transfer(url: str, part: Path, timeout: float, size: int | None, ends: float) -> bool:
    """Append to the part file what it lacks, or write it afresh; returns whether earlier bytes were kept."""
    if time.monotonic() > ends:
        raise TransferError("there was no time left", final=True)
    if not url.lower().startswith(SCHEMES):
        raise TransferError("the address is not one of http or https", final=True)
    if part.is_symlink() or (part.exists() and not part.is_file()):
        raise DataError(f"{part} is in the way and no file: delete it")
    start = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"User-Agent": "hmcvi"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    with _open(request, part, timeout) as response:
        resumed = response.status == 206
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise TransferError("the server sent another range of bytes than asked for", final=True)
        most = (LARGEST if size is None else size) - (start if resumed else 0)
        expected, received = _length(response, most), 0
        with _writing(part), part.open("ab" if resumed else "wb") as file:
            for chunk in _chunks(response, ends):
                received += len(chunk)
                if received > most:
                    raise TransferError(f"it sent more than the {most} bytes that were left", final=True)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    if expected is not None and received < expected:
        raise TransferError(f"the connection ended after {received} of {expected} bytes")
    return resumed


def _open(request: Request, part: Path, timeout: float) -> HTTPResponse:
    try:
        opened: HTTPResponse = build_opener(_Redirects).open(request, timeout=timeout)
        return opened
    except HTTPError as error:
        error.close()
        if error.code == 416:
            # the part file is longer than the file itself
            part.unlink(missing_ok=True)
        final = 400 <= error.code < 500 and error.code not in (408, 416, 429)
        raise TransferError(f"HTTP {error.code} {error.reason}", final) from error
    except (OSError, HTTPException) as error:
        raise TransferError(str(error) or repr(error)) from error


def _length(response: HTTPResponse, most: int) -> int | None:
    """What the server says that it will send, if it says so."""
    given = response.headers.get("Content-Length")
    if given is None:
        return None
    if not (given.isascii() and given.isdigit()) or len(given) > 20 or int(given) > most:
        raise TransferError(f"it announced {given[:30]!r} bytes, where at most {most} were left", final=True)
    return int(given)


class _Redirects(HTTPRedirectHandler):
    """Follows to http and https alone."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        if not newurl.lower().startswith(SCHEMES):
            raise TransferError(f"it redirects to {newurl[:100]!r}, which is not http or https", final=True)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _chunks(response: HTTPResponse, ends: float, size: int = 1 << 18) -> Iterator[bytes]:
    began, received = time.monotonic(), 0
    try:
        while chunk := response.read1(size):
            yield chunk
            now, received = time.monotonic(), received + len(chunk)
            if now > ends:
                raise TransferError("it took too long", final=True)
            if now - began > WINDOW:
                if received < SLOWEST * (now - began):
                    raise TransferError(f"it was slower than {SLOWEST:.0f} bytes per second")
                began, received = now, 0
    except (OSError, HTTPException) as error:
        raise TransferError(str(error) or repr(error)) from error


def _verify(part: Path, sha256: str, final: bool) -> None:
    found = _sha256(part)
    if found != sha256:
        part.unlink()
        raise TransferError(f"SHA-256 should be {sha256} but is {found}", final)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
