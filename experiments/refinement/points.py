"""Points of an experiment, each a JSON file; those that exist are left alone, so that it can be stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hmcvi.internal.storage import save_json
from hmcvi.training.interrupt import InterruptGuard

Point = dict[str, Any]


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
    return {name: json.loads(path.read_text()) for name in names if (path := out / f"{name}.json").exists()}
