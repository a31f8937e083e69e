"""The experiment runs, its exact answers are right, and both kernels agree with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Binomial, Normal, Poisson

from experiments import dhmc
from experiments.__main__ import main
from experiments.dhmc.problems import F64, Abundance, Problem, Staircase
from tests.support.statistics import Z, assert_mean


def assert_means(problem: Problem, position: Tensor, log_weight: Tensor) -> None:
    """Self-normalised importance sampling gives the exact answers, within its error."""
    weight, exact = log_weight.softmax(0) * len(log_weight), problem.exact()
    assert 1 / log_weight.softmax(0).square().sum() > 1000
    for name, values in problem.quantities(position).items():
        assert_mean(weight * (values - exact[name]), 0.0)


def test_the_staircase_against_weighted_paths() -> None:
    torch.manual_seed(0)
    problem, path = Staircase(), [torch.randn(200_000, dtype=F64)]
    for _ in range(problem.dim - 1):
        move = (1 - problem.correlation**2) ** 0.5 * torch.randn(200_000, dtype=F64)
        path.append(problem.correlation * path[-1] + move)
    position = torch.stack(path, -1)
    assert_means(problem, position, problem.log_height(position).sum(-1))
    points, density = problem.distribution()
    assert float(torch.trapezoid(density, points)) == pytest.approx(1.0, abs=1e-2)


def test_the_abundance_against_weighted_prior_draws() -> None:
    """Two sites, by Bayes' rule with torch's distributions; the likelihood bounds the weights."""
    torch.manual_seed(0)
    seen = torch.tensor([[8.0, 8.0, 9.0, 7.0], [6.0, 7.0, 6.0, 7.0]], dtype=F64)
    problem = Abundance(seen)
    log_rate, logit = 3 + torch.randn(500_000, dtype=F64), torch.randn(500_000, dtype=F64)
    poisson = Poisson(log_rate.exp()[:, None].expand(-1, 2))
    n = poisson.sample()
    possible = (n[..., None] >= seen).all((-1, -2))
    log_rate, logit, n = log_rate[possible], logit[possible], n[possible]
    binomial = Binomial(n[..., None], logits=logit[:, None, None], validate_args=False)
    likelihood = binomial.log_prob(seen).sum((-1, -2))
    position = problem.density.layout.flatten({"log_rate": log_rate, "logit": logit, "N": n.long()})
    assert_means(problem, position, likelihood)
    log_joint = Normal(3.0, 1.0).log_prob(log_rate) + Normal(0.0, 1.0).log_prob(logit) + likelihood
    log_joint = log_joint + Poisson(log_rate.exp()[:, None]).log_prob(n).sum(-1)
    gap = problem.log_prob({"log_rate": log_rate, "logit": logit, "N": n}) - log_joint
    torch.testing.assert_close(gap, gap[:1].expand_as(gap))
    counts, probability = problem.distribution()
    assert float(probability.sum()) == pytest.approx(1.0, abs=1e-9)
    assert float(probability @ counts) == pytest.approx(problem.exact()["N₁"], abs=1e-9)


@pytest.mark.slow
def test_the_command_writes_results_and_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dhmc, "QUICK_BUDGET", 2000)
    assert main(["dhmc", "--out", str(tmp_path / "new"), "--quick", "--seed", "3"]) == 0
    assert "times the effective samples" in capsys.readouterr().out
    result = json.loads((tmp_path / "new" / "result.json").read_text())
    assert result["settings"]["seed"] == 3
    assert (tmp_path / "new" / "figure.png").stat().st_size > 10_000
    for name in (Staircase.name, Abundance.name):
        report = result["problems"][name]["DHMC"]
        for quantity in report["quantities"].values():
            assert abs(quantity["deviation_in_standard_errors"]) < Z
            assert {"r_hat", "ess_per_1000_evaluations", "ess_per_second"} <= quantity.keys()
