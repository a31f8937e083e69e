"""Work that is kept in files: draws as they come, with the seconds that they took, and finished parts."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.data import DataError
from hmcvi.internal.storage import load, save
from hmcvi.kernels import Kernel
from hmcvi.kernels.mcmc.kernel import Info
from hmcvi.sampling import Draws, sample


def configure_parts(parser: argparse.ArgumentParser, parts: Sequence[str]) -> None:
    """Add arguments for draws of one part alone, and for a report of those there are."""
    parser.add_argument("--only", choices=parts, help="make the draws of one part, and no report")
    parser.add_argument("--report", action="store_true", help="make no draws, report those there are")


def once(file: Path, key: Mapping[str, Any], work: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """What `work` returns; read from a file if it was made for the same key before.

    key, work(): numbers, strings, tensors and containers of them by name.
    """
    if file.exists() and (kept := load(file))["key"] == dict(key):
        value: dict[str, Any] = kept["value"]
        return value
    value = dict(work())
    file.parent.mkdir(parents=True, exist_ok=True)
    save({"key": dict(key), "value": value}, file)
    return value


class Clocked(NamedTuple):
    """seconds: until each draw, warm-up included, of one chain's share [draws]."""

    draws: Draws
    seconds: Tensor


def sample_clocked(
    kernel: Kernel, initial: Tensor, num_samples: int, seed: int, file: Path, num_warmup: int = 0
) -> Clocked:
    """Sample from initial states [chains, d]; where it was stopped the same call goes on, as does its clock.

    Seconds are noted beside the draws.  All chains move together, one costs its share.
    """
    log = log_of(file)
    seconds = load_clocked(file).seconds.tolist() if file.exists() else []
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f"{value:.6g}\n" for value in seconds))
    begin = time.process_time() - (seconds[-1] * len(initial) if seconds else 0.0)

    def note(index: int, state: Phase, info: Info) -> None:
        with open(log, "a") as lines:
            lines.write(f"{(time.process_time() - begin) / len(initial):.6g}\n")

    sample(kernel, initial, num_samples, num_warmup, seed=seed, callback=note, checkpoint=file, check=False)
    return load_clocked(file, kernel)


def load_clocked(file: Path, kernel: Kernel | None = None) -> Clocked:
    """The draws that a file holds by now."""
    if not file.exists():
        raise DataError(f"there is no {file} yet: leave out --report to make its draws")
    draws = Draws.load(file, kernel)
    lines = log_of(file).read_text().split() if log_of(file).exists() else []
    return Clocked(draws, torch.tensor([float(line) for line in lines[: len(draws)]], dtype=torch.float64))


def log_of(file: Path) -> Path:
    """Where the seconds are noted that the draws in a file took."""
    return file.with_suffix(".seconds")
