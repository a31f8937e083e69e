"""Servers that lie, stall and break off: the file as it was published, or one error in bounded time."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import socket
import threading
import time
from pathlib import Path
from unittest import mock

from benchmarks.attack_parts import Clock, Count

CONTENT = bytes(range(256)) * 40
REMOTE = hashlib.sha256(CONTENT).hexdigest()


def attack(rng: random.Random, folder: Path, clock: Clock) -> Count:
    from hmcvi.data import DataError, RemoteFile, fetch

    count = Count()
    with _Server(rng) as server, mock.patch.dict(os.environ, {"no_proxy": "*"}):
        while clock():
            place = folder / "downloads"
            if rng.random() < 0.5:
                shutil.rmtree(place, ignore_errors=True)
            (place / "blob").unlink(missing_ok=True) if place.exists() else None
            remote = RemoteFile("blob", REMOTE, (server.url,), rng.choice((None, len(CONTENT))))
            began, failure, kind = time.monotonic(), None, "refused"
            try:
                path = fetch(
                    remote, place, attempts=rng.randrange(1, 4), pause=0.0, timeout=0.5, deadline=3.0
                )
                kind = "fetched"
                if path.read_bytes() != CONTENT:
                    failure = "another content"
            except DataError:
                pass
            except BaseException as error:
                failure = f"{type(error).__name__}: {error}"
            if time.monotonic() - began > 10:
                failure = f"took {time.monotonic() - began:.0f} s"
            if place.exists() and sum(p.stat().st_size for p in place.iterdir()) > 3 * len(CONTENT) + (
                1 << 20
            ):
                failure = "took more than the file has"
            count.add(kind, failure)
    return count


class _Server:
    """Answers each request in another way, most of them wrong."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __enter__(self) -> _Server:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/blob"
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(2.0)
                try:
                    request = connection.recv(10_000).decode(errors="replace")
                    connection.sendall(self._answer(request))
                except OSError:
                    continue

    def _answer(self, request: str) -> bytes:
        rng, start = self.rng, 0
        if "Range: bytes=" in request and rng.random() < 0.7:
            start = int(request.partition("Range: bytes=")[2].partition("-")[0])
        body = CONTENT[start:]
        status = (
            f"206 Partial\r\nContent-Range: bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
            if start
            else "200 OK"
        )
        length = str(len(body))
        match rng.randrange(10):
            case 0:
                body = body[: rng.randrange(len(body) + 1)]
            case 1:
                length = rng.choice(("-5", "x", "1e3", "9" * 30, "", "0"))
            case 2:
                body, length = body + rng.randbytes(10**5), str(len(body) + 10**5)
            case 3:
                status = rng.choice(
                    ("302 Found\r\nLocation: file:///etc/passwd", "302 Found\r\nLocation: /blob", "500 No")
                )
            case 4:
                place = rng.randrange(len(body) or 1)
                body = body[:place] + b"!" + body[place + 1 :]
            case 5:
                return rng.randbytes(rng.randrange(2000))
            case 6:
                status = rng.choice(
                    ("206 Partial", "206 Partial\r\nContent-Range: bytes 7-9/10", "416 No", "204 Nothing")
                )
        return f"HTTP/1.0 {status}\r\nContent-Length: {length}\r\n\r\n".encode() + body
