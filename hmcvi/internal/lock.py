"""One writer at a time for a folder."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from hmcvi.internal.storage import CheckpointError

try:
    import fcntl
except ImportError:  # a system without POSIX locks
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the advisory lock of a folder; one that another process holds is a CheckpointError that names it.

    The system drops a lock with the process that holds it, however that ends: none has to be removed by hand.
    The file `.lock` stays and says who wrote last.  Where there are no locks, nothing is locked.
    """
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise CheckpointError(f"cannot write in {folder} ({error.strerror})") from None
    try:
        if _take(descriptor):
            owner = (
                f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            )
            with contextlib.suppress(OSError):  # a full disk: the lock holds, its owner is not named
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, owner.encode(), 0)
        else:
            owner = os.pread(descriptor, 500, 0).decode(errors="replace") or "another process"
            raise CheckpointError(f"{folder} is in use by {owner}: wait for it to end, or stop it")
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    """Whether the lock is ours now."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return True
