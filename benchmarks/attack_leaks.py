"""Hours of small runs in one process: memory and open files stay what they were."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import warnings
from pathlib import Path

import torch

import hmcvi
from benchmarks.attack_parts import SMALL, Clock, Count, train
from hmcvi.kernels import HMC

FEWEST = 9  # measurements, in thirds
GROWTH = 30e6  # bytes that may be noise of the allocator


def attack(rng: random.Random, folder: Path, clock: Clock) -> Count:
    """A training and a run of sampling with its checkpoint, over and over; the first third does not count."""
    count, memory, files = Count(), [], []
    torch.set_num_threads(1)
    while clock():
        shutil.rmtree(folder / "run", ignore_errors=True)
        (folder / "draws.pt").unlink(missing_ok=True)
        code, err = train(
            "--config", "hmcvi", *SMALL, f"seed={rng.randrange(2**64)}", f"runs={folder}", "name=run"
        )
        _sample(rng.randrange(2**64), folder / "draws.pt")
        memory.append(_resident())
        files.append(len(os.listdir("/proc/self/fd")))
        count.add("train and sample", None if code == 0 else f"{code} {err}")
    if len(memory) >= FEWEST:
        third = len(memory) // 3
        middle, end = (statistics.median(part) for part in (memory[third : 2 * third], memory[2 * third :]))
        count.kinds |= {"megabytes in the middle": round(middle / 1e6), "at the end": round(end / 1e6)}
        count.kinds |= {"files in the middle": files[third], "files at the end": files[-1]}
        if end - middle > GROWTH or max(files[third:]) > files[third] + 2:
            count.failures.append(f"grew: {count.kinds}")
    return count


def _sample(seed: int, path: Path) -> None:
    kernel = HMC(hmcvi.Density(lambda z: -0.5 * z.square().sum(-1)), 0.3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hmcvi.sample(kernel, torch.zeros(8, 5), 300, 50, seed=seed, progress=False, checkpoint=path)


def _resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
