"""The table of docs/pyro.md from the records of `guides`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FAILED = 1e4  # nats below log Z
Rows = dict[str, dict[str, Any]]


def read(path: Path) -> dict[str, dict[int, Rows]]:
    """model -> seed -> guide -> its row with its gap to log Z; of two records of one guide the later."""
    found: dict[str, dict[int, Rows]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        rows = found.setdefault(record["model"], {}).setdefault(record["seed"], {})
        for label, row in record["guides"].items():
            gap = None if row["bound"] is None else record["log Z"] - row["bound"]
            rows[label] = {**row, "gap": gap}
    return found


def markdown(path: Path, labels: Iterable[str]) -> str:
    """Gaps to log Z, then errors of means and of log sds: a column per guide, in it the seeds."""
    found, columns = read(path), list(labels)
    return "\n\n".join(
        f"{title}\n\n{_table(found, columns, key)}"
        for title, key in (
            ("log Z − bound, nats", "gap"),
            ("errors of means", "mean error"),
            ("errors of log sds", "log sd error"),
        )
    )


def _table(found: Mapping[str, Mapping[int, Rows]], labels: list[str], key: str) -> str:
    lines = ["| model | " + " | ".join(labels) + " |", "|---" * (1 + len(labels)) + "|"]
    for model, seeds in found.items():
        cells = [
            ", ".join(_figure(rows[label][key]) for _, rows in sorted(seeds.items()) if label in rows)
            for label in labels
        ]
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "fails" if value is None or value > FAILED else f"{value:.2f}"
