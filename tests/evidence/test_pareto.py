"""The tail index of importance weights: known tails, ArviZ's fit, and what `Evidence` says of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from hmcvi import Density
from hmcvi.evidence import Evidence, EvidenceWarning, importance, pareto_k
from hmcvi.evidence.result import from_weights
from hmcvi.sampling.diagnostics import arviz
from tests.support.problems import F64
from tests.support.statistics import assert_mean

COUNT, REPEATS = 10_000, 200
TAIL = 300  # 3 √COUNT


def log_weights(k: float) -> Tensor:
    """Logarithms of draws whose tails beyond any threshold are generalized Pareto with this k."""
    u = torch.rand(COUNT, REPEATS, dtype=F64, generator=torch.Generator().manual_seed(0))
    if k == 0:
        return (-u.log()).log()  # exponential
    return -k * u.log() if k > 0 else (1 - u**-k).log()  # Pareto, or bounded


@pytest.mark.parametrize("k", [-0.5, 0.0, 0.3, 0.5, 0.7, 1.0])
def test_known_tails(k: float) -> None:
    """Without its prior, worth ten weights at ½, the estimate is k up to a bias of the order of 1/n."""
    estimate = (pareto_k(log_weights(k)) * (TAIL + 10) - 5) / TAIL
    spread = estimate.std()
    assert (estimate.mean() - k).abs() < 4.5 * spread / REPEATS**0.5 + 3 / TAIL
    if k >= 0:  # the information bound of a generalized Pareto distribution
        assert 0.8 < spread / ((1 + k) / TAIL**0.5) < 1.2


@pytest.mark.parametrize("count", [21, 50, 400, 3000])
def test_is_the_fit_of_arviz(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    weights = torch.randn(count, 2, 3, dtype=F64, generator=generator) * torch.tensor([0.1, 1.0, 5.0])
    theirs = [float(arviz().psislw(column.numpy().copy())[1]) for column in weights.flatten(1).T]
    torch.testing.assert_close(pareto_k(weights).flatten(), torch.tensor(theirs, dtype=F64))


def test_normal_weights_have_the_tail_of_their_ratio() -> None:
    """q = N(0, s²), γ = N(0, 1): P(w > c) ∝ c^{−1/k} up to logarithms, k = 1 − s² for a base too narrow."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(100_000, 20, dtype=F64, generator=generator)
    for scale in (0.3, 0.5):
        k = pareto_k(-0.5 * (scale * z).square() + 0.5 * z.square())
        assert (k.mean() - (1 - scale**2)).abs() < 0.1
    wide = pareto_k(-0.5 * (1.5 * z).square() + 0.5 * z.square())  # bounded
    assert (wide < 0.1).all()


@pytest.mark.parametrize(
    ("weights", "k"),
    [
        (torch.zeros(100), -math.inf),  # the base is the target
        (torch.cat([torch.zeros(60), torch.full((40,), -math.inf)]), -math.inf),  # or a part of it
        (-torch.arange(100.0) * 1e4, math.inf),  # one weight is all there is
        (torch.full((100,), -math.inf), math.nan),
        (torch.zeros(20), math.nan),
    ],
    ids=["equal", "equal or zero", "one alone", "all zero", "few"],
)
def test_where_nothing_can_be_fitted(weights: Tensor, k: float) -> None:
    fine = torch.randn(len(weights), generator=torch.Generator().manual_seed(0))
    found = pareto_k(torch.stack([weights, fine], 1))
    torch.testing.assert_close(found[0], torch.tensor(k, dtype=F64), equal_nan=True)
    assert found[1].isfinite() or len(weights) < 21


def test_a_failed_weight_is_a_weight_of_zero() -> None:
    weights = log_weights(0.3)[:, 0]
    failed = weights.where(torch.arange(COUNT) % 10 > 0, math.nan)
    assert torch.equal(pareto_k(failed), pareto_k(failed.nan_to_num(nan=-math.inf)))


def test_evidence_reports_heavy_tails() -> None:
    weights = torch.stack([log_weights(k)[:, 0] for k in (0.3, 0.9, 1.0)], 1)
    evidence = Evidence.of(from_weights(weights), {"pareto_k": pareto_k(weights)})
    assert evidence.pareto_k == pareto_k(weights).max() > 0.7
    assert "pareto_k=" in repr(evidence)
    assert "heavy tail (k > 0.7) for 2 of 3 items" in evidence.summary()


TARGET = Density(lambda z: -0.5 * z.square().sum(-1))


def base(scale: float, items: int) -> Independent:
    return Independent(Normal(torch.zeros(items, 1, dtype=F64), scale), 1)


def test_evidence_without_heavy_tails_says_nothing() -> None:
    evidence = importance(base(1.5, 3), TARGET, 2000)
    assert evidence.pareto_k < 0.7
    assert "heavy" not in evidence.summary()
    assert "Pareto" not in importance(base(1.5, 3), TARGET, 20).summary()


def test_estimates_with_large_k_are_those_that_fail() -> None:
    """Where k is small the error bar holds; where it is large, estimates fall short of log Z."""
    truth = 0.5 * math.log(2 * math.pi)
    fine = importance(base(1.2, 200), TARGET, 1000)
    with pytest.warns(EvidenceWarning):
        heavy = importance(base(0.25, 200), TARGET, 1000)
    assert (fine.diagnostics["pareto_k"] < 0.7).all() and heavy.diagnostics["pareto_k"].mean() > 0.7
    assert_mean((fine.per_item.log_z - truth) / fine.per_item.std_error, 0.0)
    assert ((heavy.per_item.log_z - truth) / heavy.per_item.std_error).median() < -1
