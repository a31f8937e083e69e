"""Pyro's NUTS on the tempered density, where log Z is known."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Independent, Normal

from hmcvi.density import Density
from hmcvi.evidence import Evidence, Fit
from hmcvi.pyro import tempered_nuts
from tests.support.problems import F64
from tests.support.statistics import Z

SCALES = torch.tensor([0.5, 1.0, 20.0], dtype=F64)
MEAN = torch.tensor([0.5, -1.0, 10.0], dtype=F64)
TARGET = Density(lambda z: -0.5 * ((z - MEAN) / SCALES).square().sum(-1))
LOG_Z = SCALES.log().sum() + 1.5 * torch.tensor(2 * torch.pi, dtype=F64).log()
BASE = Fit(torch.zeros(3, dtype=F64), torch.diag(2 * SCALES), LOG_Z - 1)


def run(num_samples: int, num_warmup: int, seed: int = 0) -> Evidence:
    return tempered_nuts(BASE, TARGET, num_samples, 2, num_warmup, seed=seed, progress=False)


@pytest.mark.slow
def test_evidence_and_moments_are_those_of_the_target() -> None:
    evidence = run(250, 50)
    assert (evidence.log_z - LOG_Z).abs() < Z * evidence.std_error < 1
    error = SCALES / evidence.ess.sqrt()
    assert ((evidence.expectation(lambda z: z) - MEAN).abs() < Z * error).all()
    assert evidence.diagnostics["beta"].shape == (250, 2)
    assert evidence.diagnostics["num_divergences"].shape == (2,)


def test_the_seed_alone_decides() -> None:
    before = torch.get_rng_state()
    first, again, other = run(5, 5, seed=3), run(5, 5, seed=3), run(5, 5, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.log_z == again.log_z != other.log_z


def test_mistakes_are_explained() -> None:
    distribution = Independent(Normal(torch.zeros(3, dtype=F64), 1.0), 1)
    with pytest.raises(ValueError, match="give log_zeta"):
        tempered_nuts(distribution, TARGET)
    with pytest.raises(ValueError, match=r"has \[4\] items"):
        tempered_nuts(distribution.expand(torch.Size([4])), TARGET, log_zeta=0.0)
