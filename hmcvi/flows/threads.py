"""How the threads of torch wait for each other."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch

PERIOD = 0.5  # seconds between two looks at the machine
CROWDED, FREE = 0.10, 0.03  # share of time that our thread wants a core and has none
_PARALLEL = 1 << 20  # elements that torch splits among its threads


class Barriers:
    """Keeps threads from spinning while other processes want their cores; to be called now and then.

    GNU OpenMP spins for milliseconds at the end of every parallel region, and is fastest so.  But where
    another process holds a core, both threads of a team share the other one, and the one that waits burns
    the time of the one it waits for: twenty times slower in all.  It spins only briefly while it manages more
    threads than there are cores, and once loaded it listens to nothing else; so while the machine is
    crowded, a second team sleeps beside the first.  OMP_WAIT_POLICY or GOMP_SPINCOUNT in the environment
    decide otherwise.
    """

    def __init__(self) -> None:
        self._decided = bool(os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})
        self._looked, self._waited = time.monotonic(), _seconds_waited()

    def __call__(self) -> None:
        now = time.monotonic()
        if self._decided or now - self._looked < PERIOD:
            return
        waited = _seconds_waited()
        share = (waited - self._waited) / (now - self._looked)
        self._looked, self._waited = now, waited
        if torch.get_num_threads() > 1 and share > CROWDED:
            sleep_at_barriers()
        elif share < FREE:
            spin_at_barriers()


class SleepingTeam(threading.Thread):
    """A thread with an OpenMP team of its own, asleep until it is dismissed."""

    def __init__(self) -> None:
        super().__init__(name="sleeping OpenMP team", daemon=True)
        self.started, self.dismissed = threading.Event(), threading.Event()

    def run(self) -> None:
        torch.zeros(_PARALLEL).add_(1)
        self.started.set()
        self.dismissed.wait()


def sleeping_team() -> SleepingTeam | None:
    """The one of this process, if there is one."""
    return next((thread for thread in threading.enumerate() if isinstance(thread, SleepingTeam)), None)


def sleep_at_barriers() -> None:
    if sleeping_team() is None:
        team = SleepingTeam()
        team.start()
        team.started.wait()


def spin_at_barriers() -> None:
    if (team := sleeping_team()) is not None:
        team.dismissed.set()
        team.join()


def _seconds_waited() -> float:
    """For a core, by this thread so far; 0 where the system does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
