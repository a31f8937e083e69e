"""A sign of life of each of many processes, so that one that hangs is noticed by the others, and named."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist

EVERY = 5.0  # seconds between two signs
SILENCE = 45.0  # seconds without one, after which a process counts as lost
DONE = "done"  # the last sign of a process that has nothing left to do
LOST = 75  # exit code of processes that have lost another


class Heartbeat:
    """Counts in a store that all processes see, and looks at the counts of the others.

    A process that is stopped, unreachable or caught in one long call of C that keeps Python from running
    counts no more; one that computes does, however long it takes.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, lose: Callable[[str], None]) -> None:
        self.store, self.rank, self.size, self.lose = store, rank, size, lose
        self.count = 0
        now = time.monotonic()
        self.seen = {other: ("", now) for other in range(size) if other != rank}
        self.names = dict.fromkeys(self.seen, "a process that never answered")

    def beat(self) -> None:
        """Give a sign, and look for those of the others."""
        self.count += 1
        self.store.set(f"beat {self.rank}", f"{self.count} process {os.getpid()} on {socket.gethostname()}")
        for other, (before, since) in self.seen.items():
            sign = self._sign(other)
            if sign == DONE:
                continue
            if sign != before:
                self.seen[other] = sign, time.monotonic()
                self.names[other] = sign.partition(" ")[2]
            elif time.monotonic() - since > SILENCE:
                self.lose(f"worker {other} ({self.names[other]}) has not answered for {SILENCE:.0f} s")

    def _sign(self, other: int) -> str:
        key = f"beat {other}"
        return self.store.get(key).decode() if self.store.check([key]) else ""


@contextmanager
def heartbeat(rank: int, size: int, attempt: str) -> Iterator[None]:
    """Within it, this process gives signs of life; if another does not, this one ends, and torchrun restarts.

    The store is that of torchrun, reached by a connection of its own.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    client = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=SILENCE))
    store = dist.PrefixStore(f"heartbeat {attempt}", client)
    ended = threading.Event()

    def lose(what: str) -> None:
        if not ended.is_set():
            print(
                f"error: {what}: this process ends, so that torchrun --max-restarts=N starts all again from "
                "the last checkpoint",
                file=sys.stderr,
                flush=True,
            )
            os._exit(LOST)

    def run() -> None:
        beats = Heartbeat(store, rank, size, lose)
        with suppress(RuntimeError):  # the store is gone with torchrun, and so are we
            while not ended.wait(EVERY if beats.count else 0.0):
                beats.beat()

    thread = threading.Thread(target=run, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(EVERY)
        with suppress(RuntimeError):
            store.set(f"beat {rank}", DONE)
