from __future__ import annotations

import pyro
import pytest


@pytest.fixture(autouse=True)
def seeded() -> None:
    pyro.set_rng_seed(0)
