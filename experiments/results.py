"""What experiments share: their arguments and the file of their results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder for result.json and figure.png")
    parser.add_argument("--seed", type=int, default=0)


def configure_with_quick(parser: argparse.ArgumentParser) -> None:
    configure(parser)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, and larger errors")


def write(out: Path, result: dict[str, Any]) -> Path:
    """result.json in the folder `out`, and where the figure belongs."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(f"results and figure are in {out}")
    return out / "figure.png"
