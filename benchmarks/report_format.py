"""What the tables of RESULTS.md are made with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.measuring import Record
from benchmarks.suite import ROOT, SUITE

NOTHING = "–"


def records(name: str) -> list[Record]:
    """Those of a part of the suite, one after the other; none if it has not been run."""
    path = ROOT / SUITE[name].file
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def number(value: float | None) -> str:
    """With three digits, or all before the point; a proper minus sign.

    >>> number(0.4671), number(-31.61), number(1948.4), number(159969.0), number(None)
    ('0.47', '−31.6', '1948', '160k', '–')
    """
    if value is None:
        return NOTHING
    size = abs(value)
    text = f"{value / 1000:.0f}k" if size >= 1e4 else f"{value:.0f}" if size >= 100 else None
    return (text or (f"{value:.1f}" if size >= 9.95 else f"{value:.2f}")).replace("-", "−")


def ranged(row: Mapping[str, Any] | None) -> str:
    """A median with its least and most.

    >>> ranged({"median": 1.0, "least": 0.5, "most": 2.0})
    '1.00 [0.50, 2.00]'
    """
    return (
        NOTHING if row is None else f"{number(row['median'])} [{number(row['least'])}, {number(row['most'])}]"
    )


def aimed(row: Mapping[str, Any] | None) -> list[str]:
    """The aim of a median and whether it is reached."""
    if row is None or "aim" not in row:
        return ["", ""]
    return [row["aim"], "yes" if row["reached"] else "no"]
