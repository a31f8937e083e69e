"""The density is that of the model, a fitted chain finds its evidence, and every method runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import langevin
from experiments.__main__ import main
from experiments.langevin.fitting import GaussianBase, Training, evaluate, fit, log_weights
from experiments.langevin.methods import METHODS
from experiments.models import LogisticRegression
from hmcvi import Chain, Density
from hmcvi.data import DataError
from tests.support.problems import F64
from tests.support.statistics import Z, assert_mean


def regression(dim: int = 3, count: int = 20) -> LogisticRegression:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, dim - 1, generator=generator, dtype=F64)
    features[:, -1] = 1.0  # a feature that does not vary
    return LogisticRegression(features, features[:, 0].sign())


def test_logistic_regression() -> None:
    model = regression()
    w = torch.randn(7, 3, dtype=F64, requires_grad=True)
    value, grad = model.value_and_grad(w)
    torch.testing.assert_close(value, model.log_prob(w))
    torch.testing.assert_close(grad, torch.autograd.grad(value.sum(), w)[0])
    torch.testing.assert_close(
        model.log_prob(torch.zeros(3, dtype=F64)).exp(),
        torch.tensor(0.5**20 * (2 * math.pi) ** -1.5, dtype=F64),
    )


@pytest.mark.parametrize("full", [False, True])
def test_the_base_is_the_distribution_of_its_draws(full: bool) -> None:
    torch.manual_seed(0)
    base = GaussianBase(3, full)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        position, log_q0 = base.draw(50_000)
        torch.testing.assert_close(base.density().log_prob(position), log_q0, rtol=1e-4, atol=1e-4)
        narrow = Density(lambda z: -8 * (z - base.loc).square().sum(-1))
        assert_mean(log_weights(base, Chain(), narrow, 50_000).double().exp(), (math.pi / 8) ** 1.5)


def test_a_fitted_chain_is_a_tighter_bound() -> None:
    torch.manual_seed(0)
    model = LogisticRegression(torch.randn(20, 2), torch.ones(20))
    base, chain = GaussianBase(3), METHODS["ULA"].chain(3, 4)
    fit(base, Chain(), model, Training(200))
    plain = evaluate(base, Chain(), model, 20_000)
    fit(base, chain, model, Training(200))
    refined = evaluate(base, chain, model, 20_000)
    assert refined["elbo"] - plain["elbo"] > Z * (refined["standard_error"] + plain["standard_error"])
    difference = abs(refined["log_evidence"] - plain["log_evidence"])
    assert difference < Z * math.hypot(refined["log_evidence_error"], plain["log_evidence_error"])


@pytest.mark.slow
def test_every_method_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langevin, "QUICK_STEPS", 3)
    monkeypatch.setattr(langevin, "QUICK_SAMPLES", 100)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(30, 4)).astype("f4"), generator.choice([-1, 1], 30).astype("i1")
    np.savez(tmp_path / langevin.FILE, X=x, y=y)
    assert main(["langevin", "--quick", "--data", str(tmp_path), "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["runs"]) == 2 + 2 * len(METHODS)
    assert all(math.isfinite(run["elbo"]) for run in result["runs"])
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_missing_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no ionosphere\.npz"):
        langevin.read(tmp_path)
