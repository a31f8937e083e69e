"""Points of an experiment, each a JSON file; those that exist are left alone, so that it can be stopped."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hmcvi.internal.storage import load_json, save_json
from hmcvi.training import ConfigError, InterruptGuard

Point = dict[str, Any]
SEED = "-seed-"


def configure(
    parser: argparse.ArgumentParser, names: Iterable[str], out: Path, seconds: float, images: int, lr: float
) -> None:
    """Add the arguments of an experiment with these points and defaults."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--data", metavar="ROOT", help="folder of the MNIST files")
    parser.add_argument("--out", type=Path, default=out, help="folder of the points")
    parser.add_argument("--seconds", type=float, default=seconds, help="of the processor, for each point")
    parser.add_argument("--images", type=int, default=images, help="of the test set")
    parser.add_argument("--lr", type=float, default=lr)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--report", action="store_true", help="print the table, draw the figure, train nothing"
    )


def checked(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names, or all if there are none; unknown ones are refused."""
    if unknown := [name for name in names if name not in (known := list(known))]:
        raise ConfigError(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
    return list(names or known)


def of_seed(name: str, seed: int) -> str:
    """The name of a point; that of seed 0 is bare."""
    return f"{name}{SEED}{seed}" if seed else name


def without_seed(name: str) -> str:
    return name.partition(SEED)[0]


def with_seeds(names: Iterable[str], out: Path) -> list[str]:
    """The names in their order, each followed by those of its other seeds in `out`."""
    others = sorted(path.stem for path in out.glob(f"*{SEED}*.json"))
    return [each for name in names for each in (name, *(o for o in others if without_seed(o) == name))]


def make_points(names: list[str], out: Path, make: Callable[[str], Point], guard: InterruptGuard) -> None:
    """Write out/name.json for every name that has none."""
    out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, 1):
        path = out / f"{name}.json"
        if path.exists():
            continue
        print(f"{number} of {len(names)}: {name}", flush=True)
        save_json({"name": name, **make(name)}, path)
        guard.check()


def read_points(names: list[str], out: Path) -> dict[str, Point]:
    """Name -> point, of those that are finished."""
    return {name: load_json(path) for name in names if (path := out / f"{name}.json").exists()}
