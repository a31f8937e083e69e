"""How the threads of torch wait for each other."""

from __future__ import annotations

import os
import threading

import torch

IDLE_TEAM = "idle OpenMP team"
_PARALLEL = 1 << 20  # elements that torch splits among its threads


def wait_asleep() -> None:
    """Let threads that wait for each other fall asleep at once instead of spinning for milliseconds.

    GNU OpenMP spins at the end of every parallel region.  Where another process holds a core, both threads
    of a team share the other one, and the thread that waits burns the time of the one it waits for: twenty
    times slower in all.  It spins only briefly while it manages more threads than there are cores, and once
    loaded it listens to nothing else; so a second team, asleep for good, keeps it from spinning.
    OMP_WAIT_POLICY or GOMP_SPINCOUNT in the environment decide otherwise.
    """
    decided = os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    asleep = any(thread.name == IDLE_TEAM for thread in threading.enumerate())
    if decided or asleep or torch.get_num_threads() == 1:
        return
    started = threading.Event()
    threading.Thread(target=_idle, args=(started,), name=IDLE_TEAM, daemon=True).start()
    started.wait()


def _idle(started: threading.Event) -> None:
    torch.zeros(_PARALLEL).add_(1)
    started.set()
    threading.Event().wait()
