"""What benchmarks share: clocks, turns, spreads, and the speed of this machine's matrix products."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Record = dict[str, Any]
SQUARE = 1024


def repeatable(parser: argparse.ArgumentParser, repeats: int, threads: int | None = None) -> None:
    """--repeats and, for what runs in this process or one at a time, --threads (None: all cores)."""
    parser.add_argument("--repeats", type=int, default=repeats, help="default: %(default)s")
    if threads is None:
        threads = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=threads, help="default: %(default)s")


def quickly(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs; measures nothing"
    )


def set_threads(count: int) -> None:
    """Of torch in this process, which has not imported it yet."""
    os.environ["OMP_NUM_THREADS"] = str(count)


def seconds(
    work: Callable[[], object], number: int = 1, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Of one call, over `number` of them."""
    began = clock()
    for _ in range(number):
        work()
    return (clock() - began) / number


def take_turns(works: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """All works one after the other, `repeats` times, so that noise of the machine hits all alike."""
    results: dict[str, list[T]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            results[name].append(work())
    return results


def ratios(numerators: Iterable[float], denominators: Iterable[float]) -> list[float]:
    """Of neighbouring runs."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def spread(
    values: Iterable[float],
    digits: int = 2,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Record:
    """Median, least and most; with an aim, whether the median reaches it.

    >>> spread([1.0, 4.0, 2.0], at_most=3)
    {'median': 2.0, 'least': 1.0, 'most': 4.0, 'aim': 'at most 3', 'reached': True}
    """
    values = list(values)
    median = statistics.median(values)
    summary = {"median": median, "least": min(values), "most": max(values)}
    row: Record = {name: round(value, digits) for name, value in summary.items()}
    if at_least is not None:
        row |= {"aim": f"at least {at_least:g}", "reached": median >= at_least}
    if at_most is not None:
        row |= {"aim": f"at most {at_most:g}", "reached": median <= at_most}
    return row


def matmul_clock(run_seconds: float) -> Callable[[], float]:
    """Measures, for about run_seconds, seconds per multiply-add of a square matrix product by torch."""
    import torch

    a, b = torch.randn(2, SQUARE, SQUARE)
    a @ b
    number = max(1, round(run_seconds / seconds(lambda: a @ b)))
    return lambda: seconds(lambda: a @ b, number) / SQUARE**3


def cpu_seconds() -> tuple[float, float]:
    """Used so far by the whole machine, and by this process."""
    with open("/proc/stat") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    return busy, time.process_time()


def timed(work: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """Its result; seconds, of the processor too, and how many cores other processes used meanwhile."""
    machine, own = cpu_seconds()
    began = time.perf_counter()
    result = work()
    took = time.perf_counter() - began
    machine_after, own_after = cpu_seconds()
    used = own_after - own
    others = max(0.0, (machine_after - machine - used) / took)
    return result, {"seconds": took, "cpu_seconds": used, "others": others}


def processor() -> str:
    """Its name."""
    with open("/proc/cpuinfo") as info:
        names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    return names[0] if names else platform.processor()


def peak_mib() -> float:
    """The largest resident memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mib() -> float:
    """The resident memory of this process now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20


def say(answer: object) -> None:
    """One JSON line to whoever started this process."""
    print(json.dumps(answer), flush=True)
