"""One program run by many processes, `torchrun --nproc-per-node N train.py ...`, or by a single one."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hmcvi.internal.heartbeat import heartbeat

T = TypeVar("T")

PATIENCE = timedelta(days=1)  # timeout for processes still at work; those that died are noticed at once
PARTING = timedelta(minutes=1)  # timeout for the others when a connection ends


@dataclass(frozen=True)
class Processes:
    """Which of `size` processes this one is.  All must call `sum`, `gather` ... alike, in the same order."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that reads and writes files for all."""
        return self.rank == 0

    def share(self, total: int) -> tuple[int, int]:
        """The part start, …, stop − 1 of a batch that falls to this process."""
        return self.rank * total // self.size, (self.rank + 1) * total // self.size

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def max(self, values: Tensor) -> Tensor:
        """The maximum over all processes."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
        if self.size == 1:
            return values
        values = values.clone()
        dist.all_reduce(values, how)
        return values

    def gather(self, value: T) -> list[T]:
        """The values of all processes, by rank: tensors, numbers, strings, containers of them."""
        if self.size == 1:
            return [value]
        message = _packed(value)
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(message)]))
        longest = max(int(length) for length in lengths)
        messages = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(messages, torch.cat([message, message.new_zeros(longest - len(message))]))
        return [_unpacked(m[: int(length)]) for m, length in zip(messages, lengths, strict=True)]

    def gather_rows(self, values: Sequence[Tensor], total: int) -> list[Tensor]:
        """Tensors [total, ...] made of the rows that `share(total)` gives each process, in one message.

        values: the rows of this process [stop − start, ...], of any dtypes.
        """
        if self.size == 1:
            return list(values)
        parts = [value.detach().contiguous().reshape(len(value), -1).view(torch.uint8) for value in values]
        message = torch.cat(parts, 1)
        longest = -(-total // self.size)
        if len(message) < longest:
            message = torch.cat([message, message.new_zeros(longest - len(message), message.shape[1])])
        found = [torch.empty_like(message) for _ in range(self.size)]
        dist.all_gather(found, message)
        shares = [Processes(rank, self.size).share(total) for rank in range(self.size)]
        rows = torch.cat([part[: stop - start] for part, (start, stop) in zip(found, shares, strict=True)])
        columns = rows.split([part.shape[1] for part in parts], 1)
        return [
            column.clone(memory_format=torch.contiguous_format)
            .view(value.dtype)
            .view(total, *value.shape[1:])
            for column, value in zip(columns, values, strict=True)
        ]

    def broadcast(self, value: T) -> T:
        """The value of the first process."""
        if self.size == 1:
            return value
        message = _packed(value)
        length = torch.tensor([len(message)])
        dist.broadcast(length, 0)
        if not self.first:
            message = torch.zeros(int(length), dtype=torch.uint8)
        dist.broadcast(message, 0)
        return _unpacked(message)

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def part(self) -> None:
        """Wait for the others before the connection ends, but not for those that are lost.

        Gloo may abort a process that ends its connection while others still use theirs.
        """
        if self.size > 1:
            with contextlib.suppress(RuntimeError):
                dist.monitored_barrier(timeout=PARTING)

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run the block in the first process, then in the others."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()


ALONE = Processes()
_connections = itertools.count()  # made by this process: each has a place of its own in the store


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    """The processes that torchrun started, connected by gloo and on GPUs by nccl; without it, this one alone.

    Only the first process prints; warnings and errors of the others are shown.
    """
    if not dist.is_torchelastic_launched():
        yield ALONE
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store, rank, size = next(dist.rendezvous("env://"))
    # processes that died, and earlier connections, may have left their addresses in the store
    attempt = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}.{next(_connections)}"
    store = dist.PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, timeout=PATIENCE, store=store, rank=rank, world_size=size)
    try:
        group = Processes(dist.get_rank(), dist.get_world_size())
        with open(os.devnull, "w") as nowhere, contextlib.ExitStack() as stack:
            stack.enter_context(heartbeat(group.rank, group.size, attempt))
            if not group.first:
                stack.enter_context(contextlib.redirect_stdout(nowhere))
            yield group
            group.part()
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def connected() -> Iterator[Processes]:
    """`processes()` for one call of a program that connects none itself; in one that does, this one alone."""
    with contextlib.nullcontext(ALONE) if dist.is_initialized() else processes() as group:
        yield group


def restarted() -> bool:
    """Whether torchrun has restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def may_restart() -> bool:
    """Whether torchrun would restart it after a failure (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0


def _packed(value: object) -> Tensor:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _unpacked(message: Tensor) -> Any:
    """Unpack without executing anything that the message may hold."""
    return torch.load(io.BytesIO(message.numpy().tobytes()), weights_only=True)
