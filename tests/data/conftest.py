import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class FileServer(ThreadingHTTPServer):
    """Serves `files` on the loopback; the switches make it misbehave, `ranges` records what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.honour_range = True
        self.cut_after: list[int] = []  # one entry per response that breaks off after so many bytes
        self.status: list[int] = []  # one entry per response that is nothing but this status
        self.ranges: list[str | None] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        content = self.server.files.get(self.path.lstrip("/"))
        if self.server.status:
            return self.send_error(self.server.status.pop(0))
        if content is None:
            return self.send_error(404)
        start = 0
        if wanted and self.server.honour_range:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # the connection closes after each HTTP/1.0 response, so a short body is a broken transfer
        self.wfile.write(body[: self.server.cut_after.pop(0)] if self.server.cut_after else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with FileServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_user_cache(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("HMCVI_DATA", str(tmp_path / "cache"))
