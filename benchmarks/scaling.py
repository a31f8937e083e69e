"""Curves of time and peak memory against chains, latents, leapfrogs, transitions, data and samples.

Every point is a process of its own with one thread: seconds of the processor per transition or training step,
and memory at its peak beyond that at the smallest size.  HMC: ten leapfrogs on a decoder posterior
20–200–200–784.  Training: batch 100 of 784 pixels, networks of 200–200, three transitions of four leapfrogs
unless the curve is over them, with partial momenta; IWAE has no chain.  Constrained HMC: 32 chains (one for
the autoregressive generator), one step.  Writes result.json and figure.png to the folder --out.  One record:
exponents, the slope of the upper half of each curve on logarithmic axes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import Record, quickly
from benchmarks.workers import child

FLOOR = 1.0  # MiB, less is not told from the noise of the allocator


@dataclass(frozen=True)
class Panel:
    label: str  # of the horizontal axis
    title: str
    sizes: tuple[int, ...]
    lines: tuple[str, ...]
    most: float | None = None  # aim for the exponents of time


PANELS = {
    "chains": Panel("chains", "transition of HMC", (1, 10, 100, 1000, 10_000), ("eager",)),
    "latent size": Panel("latent size d", "training step", (2, 8, 32, 128, 512), ("3×4 chain",)),
    "leapfrogs": Panel("leapfrogs L", "training step, T = 1", (1, 4, 16, 64), ("store",)),
    "transitions": Panel(
        "transitions T", "training step, L = 4", (1, 4, 16, 64), ("store", "checkpoint", "reversible")
    ),
    "data": Panel(
        "data N",
        "transition of constrained HMC",
        (30, 100, 300, 1000),
        ("elementwise", "teacher-forced", "autoregressive"),
        2.0,
    ),
    "samples": Panel("samples K", "training step of IWAE", (1, 4, 16, 64, 256), ("no chain",)),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder for result.json and figure.png")
    quickly(parser)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The least-squares slope of log value over log size, of the upper half of the points (two at least).

    >>> round(exponent([1, 2, 4, 8], [5.0, 5.0, 8.0, 32.0]), 6)
    2.0
    """
    upper = len(sizes) - max(2, math.ceil(len(sizes) / 2))
    x, y = ([math.log(value) for value in row[upper:]] for row in (sizes, values))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def curve(panel: str, line: str, sizes: Sequence[int], run_seconds: float) -> Record:
    points = [child("scaling_cases", panel, line, size, run_seconds) for size in sizes]
    seconds = [point["seconds"]["median"] for point in points]
    mib = [point["mib"] for point in points]
    seen = [(size, value) for size, value in zip(sizes, mib, strict=True) if value > FLOOR]
    growth = exponent(*zip(*seen, strict=True)) if len(seen) > 1 else math.nan
    return {
        "sizes": list(sizes),
        "seconds": seconds,
        "seconds_spread": [[point["seconds"]["least"], point["seconds"]["most"]] for point in points],
        "mib": mib,
        "time_exponent": round(exponent(sizes, seconds), 2),
        "memory_exponent": None if math.isnan(growth) else round(growth, 2),
    }


def run(args: argparse.Namespace) -> Iterator[Record]:
    from benchmarks.scaling_figure import draw

    run_seconds = 0.05 if args.quick else 1.0
    curves = {
        name: {
            line: curve(name, line, panel.sizes[:3] if args.quick else panel.sizes, run_seconds)
            for line in panel.lines
        }
        for name, panel in PANELS.items()
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(curves, indent=2, ensure_ascii=False) + "\n")
    draw(curves, args.out / "figure.png")
    aims = {name: panel.most for name, panel in PANELS.items() if panel.most is not None}
    yield {
        "exponents": {
            name: {
                line: {"time": own["time_exponent"], "memory": own["memory_exponent"]}
                for line, own in lines.items()
            }
            for name, lines in curves.items()
        },
        "time_exponents_at_most": aims,
        "reached": {
            name: max(own["time_exponent"] for own in curves[name].values()) <= aim
            for name, aim in aims.items()
        },
    }
