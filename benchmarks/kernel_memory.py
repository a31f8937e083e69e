"""Peak memory of a process that runs `hmcvi.sample`, by how many draws it throws away.

    python benchmarks/kernel_memory.py THIN

Prints the peak resident memory in MiB.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import warnings
from typing import Any

CHAINS, DIM, DRAWS = 1000, 10, 50
THINS = (1, 40)
NUMBERS_PER_DRAW = DIM + 7  # a position and the statistics of its transition, at four bytes or less


def peak(thin: int) -> float:
    import torch

    import hmcvi

    torch.set_num_threads(1)
    density = hmcvi.Density(lambda z: -0.5 * z.square().sum(-1))
    kernel = hmcvi.kernels.HMC(density, 0.3, 10)
    start = torch.randn(CHAINS, DIM, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hmcvi.SamplingWarning)
        hmcvi.sample(kernel, start, DRAWS, thin=thin, progress=False)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compare(repeats: int) -> dict[str, Any]:
    """The growth of the peak against the room the thinned draws would have taken, worst over repeats."""
    peaks: dict[int, list[float]] = {thin: [] for thin in THINS}
    for _ in range(repeats):
        for thin in THINS:
            command = [sys.executable, __file__, str(thin)]
            peaks[thin].append(float(subprocess.run(command, check=True, capture_output=True).stdout))
    few, many = THINS
    growth = max(b - a for a, b in zip(peaks[few], peaks[many], strict=True))
    thrown_away = (many - few) * DRAWS * CHAINS * NUMBERS_PER_DRAW * 4 / 2**20
    return {
        "benchmark": "kernels",
        "target": "memory",
        "chains": CHAINS,
        "draws": DRAWS,
        "repeats": repeats,
        "peak_mib": {f"thin_{thin}": round(max(values), 1) for thin, values in peaks.items()},
        "growth_mib": round(growth, 1),
        "thinned_draws_mib": round(thrown_away, 1),
        "reached": growth < 0.05 * thrown_away,
    }


if __name__ == "__main__":
    print(peak(int(sys.argv[1])))
