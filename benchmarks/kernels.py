"""HMC of this library against its peers: chain-leapfrogs per second, and the memory of `hmcvi.sample`.

    python benchmarks/kernels.py [ITEM] [--repeats N] [--json FILE]

Items: decoder, logistic, normal10, normal100, pyro, memory, all. Every engine runs in a process of its own,
is compiled and warmed up, and then they take turns, so that noise of the machine hits all alike; a ratio is
that of neighbouring runs. Equal acceptance rates show equal work: the same target, step size and number of
leapfrogs. Prints one JSON line per comparison, medians and the worst of the repeats; `others` is the largest
number of cores that other processes used meanwhile: far from 0, the line says little.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import kernel_memory
from kernel_targets import LEAPFROGS

HERE = Path(__file__).parent
SAME_ACCEPTANCE = 0.02


@dataclass(frozen=True)
class Item:
    """One comparison; `aims` are the least ratios {"ours/peer": number}."""

    target: str
    chains: int
    threads: int
    engines: tuple[str, ...]
    aims: dict[str, float] = field(default_factory=dict)


OURS = ("hmcvi_compiled", "hmcvi_eager", "hmcvi_sample")
ALL = (*OURS, "blackjax", "numpyro")
COMPILED, EAGER = "hmcvi_compiled/blackjax", "hmcvi_eager/blackjax"
ITEMS = {
    "decoder": [Item("decoder", 1000, 2, ALL, {COMPILED: 1.35, EAGER: 0.9})],
    "logistic": [
        Item("logistic", 1, 1, ALL, {COMPILED: 1.2}),
        Item("logistic", 100, 1, ALL, {COMPILED: 1.4, EAGER: 0.65}),
        Item("logistic", 1000, 1, ALL, {COMPILED: 1.4, EAGER: 0.65}),
    ],
    "normal10": [
        Item("normal10", 1, 1, ALL),
        Item("normal10", 100, 1, ALL, {COMPILED: 0.9}),
        Item("normal10", 1000, 1, ALL, {COMPILED: 3.0}),
    ],
    "normal100": [Item("normal100", 1000, 1, ALL, {COMPILED: 1.5})],
    "pyro": [
        Item(target, 1, 1, (*OURS, "pyro"), {"hmcvi_compiled/pyro": 10.0})
        for target in ("logistic", "normal10")
    ],
}


class Engine:
    """The controlling side of `kernel_engines.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._ask, self._answers = process.stdin, process.stdout
        self.start = self._read()
        self.runs: list[dict[str, float]] = []

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("an engine of the benchmark stopped; its error is above")
        return json.loads(line)

    def run(self) -> None:
        self._ask.write("\n")
        self._ask.flush()
        self.runs.append(self._read())

    def rates(self, chains: int) -> list[float]:
        """Chain-leapfrogs per second of each run."""
        return [chains * LEAPFROGS * run["transitions"] / run["seconds"] for run in self.runs]

    def acceptance(self) -> float:
        return statistics.mean(run["acceptance"] for run in self.runs)


@contextmanager
def engine(name: str, item: Item, cores: list[int]) -> Iterator[Engine]:
    """A worker with a fresh compile cache, one thread on each of `cores`."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    arguments = [name, item.target, str(item.chains), ",".join(map(str, cores))]
    with tempfile.TemporaryDirectory(prefix="inductor-") as cache:
        settings = {"JAX_PLATFORMS": "cpu", "TORCHINDUCTOR_CACHE_DIR": cache}
        if item.threads == 1:
            settings["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        with subprocess.Popen(
            [sys.executable, str(HERE / "kernel_engines.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict.fromkeys(threads, str(item.threads)) | settings,
        ) as process:
            yield Engine(process)
            assert process.stdin is not None
            process.stdin.close()


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


def spread(values: list[float], digits: int | None = None) -> dict[str, float]:
    """Of rates and ratios, where more is better."""
    summary = {"median": statistics.median(values), "worst": min(values), "best": max(values)}
    return {name: round(value, digits) for name, value in summary.items()}


def compare(item: Item, repeats: int) -> dict[str, Any]:
    """Start the engines one after the other, then let them take turns."""
    cores = idle_cores(item.threads)
    with ExitStack() as stack:
        engines = {name: stack.enter_context(engine(name, item, cores)) for name in item.engines}
        for _ in range(repeats):
            for worker in engines.values():
                worker.run()
    return record(item, engines)


def record(item: Item, engines: dict[str, Engine]) -> dict[str, Any]:
    rates = {name: worker.rates(item.chains) for name, worker in engines.items()}
    acceptances = {name: worker.acceptance() for name, worker in engines.items()}
    versions: dict[str, str] = {}
    for worker in engines.values():
        versions |= worker.start["versions"]
    return {
        "benchmark": "kernels",
        "target": item.target,
        "chains": item.chains,
        "threads": item.threads,
        "leapfrogs": LEAPFROGS,
        "repeats": max(len(values) for values in rates.values()),
        "chain_leapfrogs_per_s": {name: spread(values) for name, values in rates.items()},
        "ratios": ratios(rates, item),
        "acceptance": {name: round(value, 4) for name, value in acceptances.items()},
        "acceptance_agrees": max(acceptances.values()) - min(acceptances.values()) < SAME_ACCEPTANCE,
        "first_call_s": {name: worker.start["first_call_s"] for name, worker in engines.items()},
        "others": round(max(run["others"] for worker in engines.values() for run in worker.runs), 2),
        "versions": versions,
    }


def ratios(rates: dict[str, list[float]], item: Item) -> dict[str, dict[str, Any]]:
    """Of each of our engines to each peer, run by run."""
    table = {}
    for ours in (name for name in item.engines if name in OURS):
        for peer in (name for name in item.engines if name not in OURS):
            name = f"{ours}/{peer}"
            row: dict[str, Any] = spread([a / b for a, b in zip(rates[ours], rates[peer], strict=True)], 2)
            if name in item.aims:
                row |= {"aim": item.aims[name], "reached": row["median"] >= item.aims[name]}
            table[name] = row
    return table


def emit(record: dict[str, Any], file: TextIO | None) -> None:
    line = json.dumps(record)
    print(line, flush=True)
    if file is not None:
        file.write(line + "\n")
        file.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("item", nargs="?", default="all", choices=[*ITEMS, "memory", "all"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the lines to FILE as well")
    args = parser.parse_args()
    missing = [peer for peer in ("blackjax", "numpyro") if importlib.util.find_spec(peer) is None]
    if missing and args.item not in ("pyro", "memory"):
        print(
            f"no {' and '.join(missing)} here: pip install -c constraints.txt -e '.[bench]'", file=sys.stderr
        )
        return 1
    with ExitStack() as stack:
        file = None if args.json is None else stack.enter_context(args.json.open("a"))
        for name, items in ITEMS.items():
            if args.item in (name, "all"):
                for item in items:
                    emit(compare(item, args.repeats), file)
        if args.item in ("memory", "all"):
            emit(kernel_memory.compare(args.repeats), file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
