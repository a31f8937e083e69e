"""The NLL of an evaluation: exact where it can be known, withheld where annealing fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hmcvi.kernels import annealed_chain
from hmcvi.models import VAE
from hmcvi.networks import GaussianDecoder
from hmcvi.training import InterruptGuard, load_config, report
from hmcvi.training.checkpoint import load
from hmcvi.training.evaluation import evaluate
from hmcvi.training.likelihood import annealed_nll, refined_base, share_at_floor
from tests.support.statistics import Z
from tests.training.conftest import CHAIN, run_in_process

SCALE = 0.5
FACTORS = torch.tensor([[1.0, 0.5], [-0.3, 2.0], [0.7, 0.7]], dtype=torch.float64)


class LinearDecoder(nn.Module):
    """p(x|z) = N(W z, SCALE²)"""

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        loc = z @ FACTORS.T
        return loc, torch.full_like(loc, SCALE)


class WideEncoder(nn.Module):
    """The mean of the posterior, a little off, and more than its standard deviations."""

    def __init__(self, shift: float = 0.2) -> None:
        super().__init__()
        self.shift = shift
        precision = torch.eye(2, dtype=torch.float64) + FACTORS.T @ FACTORS / SCALE**2
        self.covariance = torch.linalg.inv(precision)
        self.parameter = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loc = x @ FACTORS @ self.covariance.T / SCALE**2 + self.shift
        return loc, (1.5 * self.covariance.diagonal().sqrt()).expand_as(loc)


@pytest.fixture
def linear() -> VAE:
    """A model with x ~ N(0, W Wᵀ + SCALE² I)."""
    return VAE(3, 2, likelihood="gaussian", encoder=WideEncoder(), decoder=LinearDecoder())


@pytest.fixture
def marginal() -> torch.distributions.Distribution:
    """p(x) of the model."""
    return torch.distributions.MultivariateNormal(
        torch.zeros(3, dtype=torch.float64), FACTORS @ FACTORS.T + SCALE**2 * torch.eye(3).double()
    )


def test_annealing_finds_the_exact_likelihood(
    linear: VAE, marginal: torch.distributions.Distribution
) -> None:
    torch.manual_seed(1)
    x = marginal.sample((20,))
    nll, std_error, ess = annealed_nll(linear, x, num_chains=64, num_temperatures=30)
    deviation = (nll + marginal.log_prob(x)) / std_error
    assert (deviation.abs() < Z).all() and std_error.max() < 0.2
    assert deviation.square().mean() == pytest.approx(1, abs=Z * (2 / 20) ** 0.5)
    assert (ess > 20).all()


def test_annealing_starts_where_the_chain_ends(marginal: torch.distributions.Distribution) -> None:
    """The encoder is four standard deviations off and its chain repairs that."""
    torch.manual_seed(1)
    x = marginal.sample((20,))
    chain = annealed_chain(2, 3, 20, 2, coordinates="encoder", initial_step_size=0.4).double()
    far = VAE(3, 2, chain, "gaussian", encoder=WideEncoder(shift=1.5), decoder=LinearDecoder())
    base, exact = refined_base(far, x), far.encode(x).mean - 1.5
    spread = far.encode(x).stddev / 1.5
    assert ((base.mean - exact) / spread).abs().mean() < 0.5 < 4 < (1.5 / spread).mean()
    nll, std_error, ess = annealed_nll(far, x, num_chains=64, num_temperatures=30)
    assert ((nll + marginal.log_prob(x)).abs() < Z * std_error).all()
    assert (ess > 20).all()


def test_without_a_chain_annealing_starts_at_the_encoders_posterior(linear: VAE) -> None:
    x = torch.randn(3, 3).double()
    base, encoded = refined_base(linear, x), linear.encode(x)
    assert torch.equal(base.mean, encoded.mean) and torch.equal(base.stddev, encoded.stddev)


def test_annealing_draws_from_torchs_random_numbers(linear: VAE) -> None:
    x, found = torch.randn(3, 3).double(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(annealed_nll(linear, x, 4, 10).nll)
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_a_run_evaluated_by_annealing(small: list[str], finished: Path) -> None:
    ais = ["evaluate.nll=ais", "evaluate.ais_chains=8", "evaluate.ais_temperatures=40"]
    some = ["evaluate.num_draws=2", "evaluate.nll_draws=1", "evaluate.max_images=60"]
    folder = run_in_process([*small, *CHAIN, *ais, *some])
    stages = json.loads((folder / "summary.json").read_text())["stages"]
    for stage in stages:
        assert (stage["nll_method"], stage["nll_samples"], stage["nll_draws"]) == ("ais", 8, 1)
        assert 1 <= stage["nll_ess"] <= 8 and 0 < stage["nll_sampling_se"] < stage["nll_se"]
        scores = load(folder / f"{stage['name']}-scores.pt")
        total = scores["nll_sampling_se"].double().square().sum().sqrt() / 60
        assert stage["nll_sampling_se"] == pytest.approx(total.item(), rel=1e-4)
        assert "AIS, 8 chains, 40 temperatures" in scores["settings"]
    by_sampling = run_in_process([*small, *CHAIN, *some, "name=is", "evaluate.nll_samples=5000"])
    for stage, other in zip(
        stages, json.loads((by_sampling / "summary.json").read_text())["stages"], strict=True
    ):
        error = (stage["nll_sampling_se"] ** 2 + other["nll_sampling_se"] ** 2) ** 0.5
        assert abs(stage["nll"] - other["nll"]) < Z * error
        assert stage["bound"] == other["bound"]


def evaluated(model: VAE, x: Tensor, tmp_path: Path, *overrides: str) -> dict[str, Any]:
    settings = ["model.likelihood=gaussian", "data.binarize=none", "evaluate.num_draws=1"]
    config = load_config(overrides=[*settings, "evaluate.nll=ais", *overrides])
    with InterruptGuard() as guard:
        scores = evaluate(model, x, config, guard, tmp_path / "x.pt")
    assert ("nll" in scores.per_image) == (scores.summary["nll"] is not None)
    return {"name": "vae", **scores.summary, "epochs": 1, "seconds": 1.0}


def collapsed(min_scale: float) -> VAE:
    """A model whose scales are all at their floor, with an encoder that knows nothing."""
    torch.manual_seed(2)
    decoder = GaussianDecoder(2, 30, (16,), min_scale=min_scale)
    nn.init.constant_(decoder.net[-1].bias[30:], -30.0)
    return VAE(30, 2, likelihood="gaussian", hidden=(16,), decoder=decoder)


def test_a_collapsed_decoder_has_no_nll_but_an_explanation(tmp_path: Path) -> None:
    model = collapsed(1e-3)
    stage = evaluated(model, torch.rand(20, 30), tmp_path, "evaluate.ais_temperatures=20")
    assert stage["nll"] is None and stage["nll_se"] is None
    assert "100% of the decoder's scales stand at their floor of 0.001" in stage["nll_problem"]
    assert "evaluate.ais_temperatures=200" in stage["nll_problem"]
    text = report({"stages": [stage], "config": {"train": {}}})
    assert "no NLL of vae: annealing failed for " in text


def test_scales_at_the_floor_alone_are_no_reason_to_refuse(tmp_path: Path) -> None:
    model = collapsed(1.0)
    assert share_at_floor(model, torch.rand(5, 30)) == 1
    stage = evaluated(model, torch.rand(20, 30), tmp_path, "evaluate.ais_temperatures=20")
    assert stage["nll"] > 0 and "nll_problem" not in stage


def test_few_effective_samples_are_reported(tmp_path: Path) -> None:
    """By importance sampling the figure stays, as in the paper, but not alone."""
    model = collapsed(0.05)
    stage = evaluated(model, torch.rand(20, 30), tmp_path, "evaluate.nll=is", "evaluate.nll_samples=100")
    assert stage["nll"] is not None and stage["nll_num_few"] > 10
    text = report({"stages": [stage], "config": {"train": {}}})
    assert f"few effective samples for {stage['nll_num_few']} of 20 images" in text
