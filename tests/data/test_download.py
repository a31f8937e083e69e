import errno
import hashlib
import os
import socket

import numpy as np
import pytest

from hmcvi.data import DataError, RemoteFile, fetch

CONTENT = np.random.default_rng(0).bytes(1_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def remote(server) -> RemoteFile:
    server.files["blob"] = CONTENT
    return RemoteFile("blob", DIGEST, (server.url("blob"),))


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_whole_transfer(remote, server, tmp_path):
    path = fetch(remote, tmp_path / "deep" / "folder", pause=0)
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == {"blob"}
    assert server.ranges == [None]


def test_existing_file_is_kept(remote, server, tmp_path):
    (tmp_path / "blob").write_bytes(b"the user's own")
    assert fetch(remote, tmp_path).read_bytes() == b"the user's own"
    assert server.ranges == []


def test_broken_transfer_is_resumed_at_once(remote, server, tmp_path):
    server.cut_after = [300_000, 200_000]
    assert fetch(remote, tmp_path, pause=0).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]
    assert names(tmp_path) == {"blob"}


def test_broken_transfer_is_resumed_by_the_next_call(remote, server, tmp_path):
    server.cut_after = [300_000]
    with pytest.raises(DataError, match=r"ended after 300000 of 1000000 bytes"):
        fetch(remote, tmp_path, attempts=1)
    assert names(tmp_path) == {"blob.part"}
    assert (tmp_path / "blob.part").read_bytes() == CONTENT[:300_000]
    assert fetch(remote, tmp_path, attempts=1).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]


def test_server_without_range_starts_again(remote, server, tmp_path):
    server.honour_range = False
    server.cut_after = [300_000]
    assert fetch(remote, tmp_path, pause=0).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]


def test_wrong_checksum(remote, server, tmp_path):
    server.files["blob"] = b"x" + CONTENT[1:]
    found = hashlib.sha256(server.files["blob"]).hexdigest()
    with pytest.raises(DataError, match=rf"{DIGEST} but is {found}"):
        fetch(remote, tmp_path, pause=0)
    assert names(tmp_path) == set()
    assert len(server.ranges) == 1


def test_stale_part_file_does_not_spoil_the_download(remote, server, tmp_path):
    (tmp_path / "blob.part").write_bytes(b"another file")
    assert fetch(remote, tmp_path, pause=0).read_bytes() == CONTENT
    assert server.ranges == ["bytes=12-", None]


def test_part_file_too_long(remote, server, tmp_path):
    (tmp_path / "blob.part").write_bytes(CONTENT + b"more")
    assert fetch(remote, tmp_path, pause=0).read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000004-", None]


def test_whole_part_file_needs_no_network(tmp_path):
    (tmp_path / "blob.part").write_bytes(CONTENT)
    assert fetch(RemoteFile("blob", DIGEST, ()), tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == {"blob"}


def test_not_found_is_not_asked_again(server, tmp_path):
    remote = RemoteFile("blob", DIGEST, (server.url("blob"),))
    with pytest.raises(DataError, match=rf"blob \({server.url('blob')}: HTTP 404.*by hand into {tmp_path}"):
        fetch(remote, tmp_path)
    assert names(tmp_path) == set()
    assert len(server.ranges) == 1


def test_passing_server_error_is_retried(remote, server, tmp_path):
    server.status = [503, 429]
    assert fetch(remote, tmp_path, pause=0).read_bytes() == CONTENT
    assert len(server.ranges) == 3


def test_mirrors_are_tried_in_turn(remote, server, tmp_path):
    server.files["damaged"] = CONTENT[::-1]
    urls = (server.url("missing"), server.url("damaged"), *remote.urls)
    assert fetch(remote._replace(urls=urls), tmp_path, attempts=1).read_bytes() == CONTENT
    assert len(server.ranges) == 3


def test_unreachable_server(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as closed:
        # bound but not listening, so that connections are refused
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/blob"
        with pytest.raises(
            DataError, match=rf"could not download blob \({url}.*refused.*by hand into {tmp_path}"
        ):
            fetch(RemoteFile("blob", DIGEST, (url,)), tmp_path, pause=0)
    assert names(tmp_path) == set()


def test_silent_server_times_out(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/blob"
        with pytest.raises(DataError, match="timed out"):
            fetch(RemoteFile("blob", DIGEST, (url,)), tmp_path, attempts=1, timeout=0.1)


def test_full_disk_keeps_the_part_file(remote, server, tmp_path):
    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    server.cut_after = [300_000]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(
            DataError, match=r"could not write .*blob.part: .*No space left.*kept and resumed"
        ):
            fetch(remote, tmp_path, pause=0)
    assert names(tmp_path) == {"blob.part"}
    assert fetch(remote, tmp_path, pause=0).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]


def test_folder_that_cannot_be_made(remote, server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="could not write"):
        fetch(remote, tmp_path / "file" / "folder")
    assert server.ranges == []
