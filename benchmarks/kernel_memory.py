"""Peak memory of a process that runs `hmcvi.sample`, by how many draws it throws away."""

from __future__ import annotations

import sys
import warnings
from functools import partial

from benchmarks.measuring import Record, peak_mib, say, spread, take_turns
from benchmarks.workers import child

CHAINS, DIM, DRAWS = 1000, 10, 50
THINS = (1, 40)
NUMBERS_PER_DRAW = DIM + 7  # a position and the statistics of its transition, at four bytes or less


def peak(thin: int) -> float:
    import torch

    import hmcvi

    density = hmcvi.Density(lambda z: -0.5 * z.square().sum(-1))
    kernel = hmcvi.kernels.HMC(density, 0.3, 10)
    start = torch.randn(CHAINS, DIM, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hmcvi.SamplingWarning)
        hmcvi.sample(kernel, start, DRAWS, thin=thin, progress=False)
    return peak_mib()


def compare(repeats: int) -> Record:
    """The growth of the peak against the room the thinned draws would have taken."""
    works = {f"thin_{thin}": partial(child, "kernel_memory", thin) for thin in THINS}
    peaks = take_turns(works, repeats)
    few, many = THINS
    growth = [b - a for a, b in zip(peaks[f"thin_{few}"], peaks[f"thin_{many}"], strict=True)]
    thrown_away = (many - few) * DRAWS * CHAINS * NUMBERS_PER_DRAW * 4 / 2**20
    return {
        "target": "memory",
        "chains": CHAINS,
        "draws": DRAWS,
        "repeats": repeats,
        "peak_mib": {name: spread(values, 1) for name, values in peaks.items()},
        "growth_mib": spread(growth, 1),
        "thinned_draws_mib": round(thrown_away, 1),
        "growth_over_thinned_draws": spread([value / thrown_away for value in growth], 3, at_most=0.05),
    }


if __name__ == "__main__":
    say(peak(int(sys.argv[1])))
