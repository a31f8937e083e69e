"""Checkpoints of draws: a file that grows by the new draws alone, each piece with its SHA-256.

The file is MAGIC, then records: two lengths (8 bytes each, little-endian), a header (a file of torch: how
the run began, where it stands, the names and shapes of what follows), numbers as they are in memory, and the
SHA-256 of all these.  A record that a crash has cut off, or a disk has damaged, ends the file there: what is
before it is a run that goes on, and gives the same draws again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import struct
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from hmcvi.internal.storage import CheckpointError, write_pieces
from hmcvi.sampling.diagnostics import SamplingWarning

MAGIC = b"hmcvi-draws-1\n"
LENGTHS = struct.Struct("<QQ")
DTYPES = {
    str(dtype): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
}


class Piece(NamedTuple):
    """Draws in a row, and where the run then stands.  position: [chains, draws, d]; stats: [chains, draws]"""

    position: Tensor
    stats: Mapping[str, Tensor]
    end: dict[str, Any]

    def __len__(self) -> int:
        return self.position.shape[1]


class DrawsLog:
    """The file of a run: `size` bytes and `count` draws of it are known to be whole."""

    def __init__(self, path: Path, size: int = 0, count: int = 0) -> None:
        self.path, self.size, self.count = path, size, count

    def append(self, head: Mapping[str, Any], piece: Piece) -> None:
        """Add draws to the file; with `count` 0, or where the file is not as it was left, make it anew.

        A failure leaves the file as it was, and is an OSError or a CheckpointError.
        """
        content = list(_record(head, piece))
        if self.size == 0:
            write_pieces([MAGIC, *content], self.path)
            self.size = len(MAGIC)
        else:
            self._extend(content)
        self.size += sum(len(part) for part in content)
        self.count += len(piece)

    def is_whole(self) -> bool:
        """Whether the file is as it was left, or has more at its end."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_size >= self.size > 0
        return False

    def _extend(self, content: list[bytes | memoryview]) -> None:
        with open(self.path, "r+b") as file:
            file.truncate(self.size)  # without what a crash left
            file.seek(self.size)
            try:
                for part in content:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), self.size)
                raise


def is_log(path: Path) -> bool:
    """Whether a file begins as one of these does."""
    try:
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_log(path: Path) -> tuple[dict[str, Any], DrawsLog]:
    """Position, stats, end and head of all whole records, and the log to go on with."""
    log = DrawsLog(path, len(MAGIC))
    head: dict[str, Any] = {}
    positions: list[Tensor] = []
    stats: dict[str, list[Tensor]] = {}
    end: Any = None
    try:
        with open(path, "rb") as file:
            file.seek(len(MAGIC))
            total = os.fstat(file.fileno()).st_size
            while log.size < total and (found := _next(file, total - log.size)) is not None:
                header, tensors, size = found
                head, end = head or header["head"], header["end"]
                positions.append(tensors.pop("position"))
                for name, values in tensors.items():
                    stats.setdefault(name, []).append(values)
                log.size, log.count = log.size + size, log.count + len(positions[-1])
    except (OSError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); use an older copy") from None
    if not positions:
        raise CheckpointError(f"{path} is damaged (it has no whole record); use an older copy")
    if log.size < total:
        message = f"{path} is damaged or was cut off: going on from the {log.count} draws that are whole"
        warnings.warn(message, SamplingWarning, stacklevel=4)
    kept = [part for part in positions if len(part)] or positions[:1]
    return {
        **head,
        "position": torch.cat(kept).transpose(0, 1),
        "stats": {name: torch.cat(parts).transpose(0, 1) for name, parts in stats.items()},
        "end": end,
    }, log


def _record(head: Mapping[str, Any], piece: Piece) -> Iterator[bytes | memoryview]:
    tensors = {"position": piece.position, **piece.stats}
    rows = {name: values.transpose(0, 1).detach().cpu().contiguous() for name, values in tensors.items()}
    about = {name: [str(values.dtype), *values.shape] for name, values in rows.items()}
    buffer = io.BytesIO()
    torch.save({"head": dict(head), "end": piece.end, "tensors": about}, buffer)
    header = buffer.getvalue()
    body: list[Any] = [values.flatten().view(torch.uint8).numpy().data for values in rows.values()]
    found = hashlib.sha256()
    for part in (LENGTHS.pack(len(header), sum(map(len, body))), header, *body):
        found.update(part)
        yield part
    yield found.digest()


def _next(file: BinaryIO, left: int) -> tuple[dict[str, Any], dict[str, Tensor], int] | None:
    """The header of the next record, its tensors and its length in bytes; None if it is not whole."""
    lengths = file.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    header_size, body_size = LENGTHS.unpack(lengths)
    size = LENGTHS.size + header_size + body_size + 32
    if size > left:
        return None
    header, body = file.read(header_size), bytearray(file.read(body_size))
    found = hashlib.sha256(lengths)
    found.update(header)
    found.update(body)
    if found.digest() != file.read(32):
        return None
    try:
        content = torch.load(io.BytesIO(header), weights_only=True)
        return content, _tensors(content["tensors"], body), size
    except Exception as error:  # a digest that fits, but of something else
        raise CheckpointError(f"{file.name} holds no draws ({error or type(error).__name__})") from None


def _tensors(about: Mapping[str, Any], body: bytearray) -> dict[str, Tensor]:
    tensors, place = {}, 0
    for name, (kind, *shape) in about.items():
        dtype, count = DTYPES[kind], math.prod(shape)
        if count < 0 or place + count * dtype.itemsize > len(body):
            raise ValueError("tensors larger than the record")
        tensors[name] = (
            torch.frombuffer(body, dtype=dtype, count=count, offset=place).reshape(shape)
            if count
            else torch.empty(shape, dtype=dtype)
        )
        place += count * dtype.itemsize
    return tensors
