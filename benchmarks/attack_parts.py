"""What attacks have in common: counting, small runs, and a disk that fails."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

SMALL = [
    "model.latent_dim=3", "model.hidden=[8]", "chain.hidden=[8]", "chain.num_hmc=1", "chain.num_leapfrog=1",
    "data.limit=300", "train.pretrain_epochs=1", "train.epochs=2", "train.batch_size=100", "train.threads=1",
    "train.checkpoint_seconds=0.001", "evaluate.num_draws=1", "evaluate.nll_samples=5",
    "evaluate.validation_nll_samples=0", "evaluate.max_images=20", "evaluate.images_every=1000",
]  # fmt: skip


@dataclass
class Count:
    """What was tried, and a line for each that went wrong."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)  # how those tried ended

    def add(self, kind: str, failure: str | None = None) -> None:
        self.tried += 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if failure is not None:
            self.failures.append(failure[:500])

    def record(self) -> dict[str, Any]:
        return {
            "tried": self.tried,
            "failed": len(self.failures),
            "kinds": self.kinds,
            "failures": self.failures[:5],
        }


class Clock:
    """Whether there is time, and tries, left."""

    def __init__(self, seconds: float, most: int = 10**9) -> None:
        self.ends, self.most, self.made = time.monotonic() + seconds, most, 0

    def __call__(self) -> bool:
        self.made += 1
        return self.made <= self.most and time.monotonic() < self.ends


Attack = Callable[[random.Random, Path, Clock], Count]


def quietly(work: Callable[[], int]) -> tuple[int | str, str]:
    """Exit code and standard error of a command that runs in this process; a traceback has no code."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            return work(), err.getvalue()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1, err.getvalue()
    except BaseException as error:  # what an attack looks for
        return f"{type(error).__name__}: {error}", err.getvalue()


def train(*arguments: str) -> tuple[int | str, str]:
    """`hmcvi train`, in this process."""
    from hmcvi.commands.train import main

    return quietly(lambda: main(arguments))


def only_json(path: Path) -> Any:
    """The content of a file that must be JSON, without NaN and infinities."""

    def refuse(token: str) -> None:
        raise ValueError(f"{path} holds {token}")

    return json.loads(path.read_text(), parse_constant=refuse)


def weights_of(folder: Path) -> dict[str, bytes]:
    """The weights that a run has stored, as bytes."""
    import torch

    found = {}
    for stage in ("vae", "chain"):
        state = torch.load(folder / f"{stage}.pt", weights_only=True)["model"]
        found |= {f"{stage} {name}": value.numpy().tobytes() for name, value in state.items()}
    return found


class FailingDisk:
    """Lets some writes to files within a folder fail, as a full or broken disk does.

    rate: the share of calls that fail while it is `broken`.  Half of the writes that fail have written a
    part before.
    """

    ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EFBIG)

    def __init__(self, rng: random.Random, folder: Path, rate: float) -> None:
        self.rng, self.folder, self.rate = rng, os.path.realpath(folder), rate
        self.broken, self.faults = True, 0

    def _strike(self, where: object) -> bool:
        if not self.broken or not str(where).startswith(self.folder) or self.rng.random() >= self.rate:
            return False
        self.faults += 1
        return True

    def _error(self) -> OSError:
        number = self.rng.choice(self.ERRORS)
        return OSError(number, os.strerror(number))

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Within it, files are on this disk."""
        real = {name: getattr(os, name) for name in ("open", "write", "fsync", "replace", "link")}
        disk = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                place = _place(self.fileno())
                if disk._strike(place):
                    if disk.rng.random() < 0.5:
                        super().write(memoryview(data)[: len(data) // 2])
                    raise disk._error()
                return super().write(data)

        def opened(path: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            binary = mode.replace("b", "")
            if "b" not in mode or binary == "r":
                return builtin(path, mode, *rest, **more)
            name = _place(path) if isinstance(path, int) else os.path.abspath(path)
            if not str(name).startswith(disk.folder):
                return builtin(path, mode, *rest, **more)
            raw = Raw(path, binary)
            return io.BufferedRandom(raw) if "+" in binary else io.BufferedWriter(raw)

        def wrapped(name: str) -> Callable[..., Any]:
            def call(first: Any, *rest: Any, **more: Any) -> Any:
                place = _place(first) if isinstance(first, int) else os.path.abspath(first)
                writes = name != "open" or (rest and rest[0] & (os.O_WRONLY | os.O_RDWR))
                if writes and not str(place).endswith(".lock") and disk._strike(place):
                    if name == "write" and disk.rng.random() < 0.5:
                        with suppress(OSError):
                            real[name](first, memoryview(rest[0])[: len(rest[0]) // 2])
                    raise disk._error()
                return real[name](first, *rest, **more)

            return call

        builtin = builtins.open
        calls = {name: wrapped(name) for name in real}
        with mock.patch.multiple(os, **calls), mock.patch.object(builtins, "open", opened):
            yield


def _place(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""
