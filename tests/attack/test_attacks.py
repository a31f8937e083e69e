"""Each attack of `python -m benchmarks attack`, for a few seconds, with new random numbers every time."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import pytest

from benchmarks.attack_parts import Clock

TRIES = {"configs": 250, "threads": 4, "downloads": 60}
SLOW_TRIES = {"files": 20, "faults": 4, "kills": 2, "leaks": 1}


def attack(name: str, folder: Path, tries: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    module = importlib.import_module(f"benchmarks.attack_{name}")
    count = module.attack(random.Random(seed), folder, Clock(60, tries))
    assert count.tried
    assert not count.failures, f"seed {seed}: {count.failures}"


@pytest.mark.parametrize("name", TRIES)
def test_attacks_fail(name: str, tmp_path: Path) -> None:
    attack(name, tmp_path, TRIES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_TRIES)
def test_slow_attacks_fail(name: str, tmp_path: Path) -> None:
    attack(name, tmp_path, SLOW_TRIES[name])
