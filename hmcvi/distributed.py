"""One program run by many processes: `torchrun --nproc-per-node N -m hmcvi.cli ...`, and by one alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")

PATIENCE = timedelta(days=1)  # with processes that are still at work; those that died are noticed at once


@dataclass(frozen=True)
class Processes:
    """Which of `size` processes this one is.  All must call `gather` and `broadcast`, in the same order."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """The one that reads and writes files for all."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """What each process has, by rank, known to all."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def broadcast(self, value: T) -> T:
        """What the first process has, known to all."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    """The processes that torchrun started, connected by gloo; without it, this one alone.

    What others than the first print is dropped; their warnings and errors are not.
    """
    if not dist.is_torchelastic_launched():
        yield Processes()
        return
    dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        group = Processes(dist.get_rank(), dist.get_world_size())
        with open(os.devnull, "w") as nowhere, contextlib.ExitStack() as stack:
            if not group.first:
                stack.enter_context(contextlib.redirect_stdout(nowhere))
            yield group
    finally:
        dist.destroy_process_group()
