"""Engines in processes of their own, perhaps of another interpreter, that take turns with each other."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measuring import Record, say

ROOT = Path(__file__).parents[1]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def add_peer_python(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        help="interpreter that has the peers (RESULTS.md says how to make one); without it they are left out",
    )


class Worker:
    """The controlling side of a process that calls `serve`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.start = self._read()

    def ask(self, line: object = "") -> Record:
        self.begin(line)
        return self.end()

    def begin(self, line: object = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def end(self) -> Record:
        return self._read()

    def _read(self) -> Record:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("an engine of the benchmark stopped; its error is above")
        answer: Record = json.loads(line)
        return answer


@contextmanager
def worker(
    module: str, *args: object, cores: Sequence[int], python: str = sys.executable
) -> Iterator[Worker]:
    """`python -m benchmarks.MODULE ARGS`, one thread on each of `cores`, with a fresh compile cache."""
    with tempfile.TemporaryDirectory(prefix="inductor-") as cache:
        environment = os.environ | dict.fromkeys(THREADS, str(len(cores)))
        environment |= {"JAX_PLATFORMS": "cpu", "TORCHINDUCTOR_CACHE_DIR": cache}
        if len(cores) == 1:
            environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        with subprocess.Popen(
            [python, "-m", f"benchmarks.{module}", *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # XLA has no other limit on its threads
        ) as process:
            yield Worker(process)  # and ends when its input does


def serve(start: Record, answer: Callable[[str], Record]) -> None:
    """The worker's side, once warmed up: an answer to every line, sleep in between."""
    say(start)
    for line in sys.stdin:
        say(answer(line.strip()))


def child(module: str, *args: object, launcher: Sequence[str] = (), threads: int = 1) -> Any:
    """What `python [-m LAUNCHER] -m benchmarks.MODULE ARGS` says; it does one thing and ends."""
    command = [sys.executable, *launcher, "-m", f"benchmarks.{module}", *map(str, args)]
    environment = os.environ | dict.fromkeys(THREADS, str(threads))
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def idle_cores(count: int) -> list[int]:
    """Those with the least to do during half a second."""

    def idle() -> dict[int, int]:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        return {int(row[0][3:]): int(row[4]) for row in rows if row[0].startswith("cpu") and row[0] != "cpu"}

    before = idle()
    time.sleep(0.5)
    after = idle()
    allowed = sorted(os.sched_getaffinity(0), key=lambda core: before[core] - after[core])
    if len(allowed) < count:
        raise SystemExit(f"this comparison needs {count} cores, there are {len(allowed)}")
    return sorted(allowed[:count])
