"""The experiments with estimated densities, scaled down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.__main__ import main
from experiments.pseudo_marginal.gaussian_latent import READINGS
from experiments.pseudo_marginal.gaussian_model import DIM, Model
from experiments.pseudo_marginal.runs import effective, longest_run
from tests.support.problems import F64


@pytest.mark.parametrize("model", READINGS.values(), ids=READINGS)
def test_the_posterior_is_that_of_the_model(model: Model) -> None:
    """z at its conditional mean carries x's whole share of the joint density, all being normal."""
    torch.manual_seed(0)
    x = model.mean + 0.3 * torch.randn(2, DIM, dtype=F64)
    weight = model.sigma**2 / model.total
    z = x[:, None] + weight * (model.data - x[:, None])
    joint = model.log_joint(x, z.flatten(-2))
    exact = -0.5 * (x - model.mean).square().sum(-1) / model.variance
    torch.testing.assert_close(joint[0] - joint[1], exact[0] - exact[1])


@pytest.mark.parametrize("model", READINGS.values(), ids=READINGS)
def test_auxiliary_variables_have_their_posterior(model: Model) -> None:
    """Exact draws of the first u against its mean and variance, within four standard errors."""
    count = 20_000
    _, u = model.draw(count, 1, torch.Generator().manual_seed(0))
    mean, spread = model.auxiliary_posterior()
    score = (u[:, 0] - mean) / spread
    assert abs(float(score.mean())) < 4 / count**0.5
    assert abs(float(score.square().mean()) - 1) < 4 * (2 / count) ** 0.5


def test_chains_that_never_moved_are_worth_nothing() -> None:
    draws = torch.randn(2, 1, 3, dtype=F64).expand(2, 100, 3)
    assert effective(draws) == 0


def test_runs_of_rejections() -> None:
    rejected = torch.tensor([[True, True, False, True], [False, True, True, True]])
    assert longest_run(rejected) == 3


@pytest.mark.slow
def test_gaussian_latent(tmp_path: Path) -> None:
    assert main(["gaussian-latent", "--quick", "--reading", "noise", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "figure-traces.png").stat().st_size > 10_000
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["methods"]) == 9 and (tmp_path / "figure.png").stat().st_size > 10_000
    for report in result["methods"].values():
        assert len(report["ess_per_1000_evaluations"]) == 2


@pytest.mark.slow
def test_gp_probit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a small table in the format of the data, started a second time from its files."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randint(1, 11, (25, 9), generator=generator).tolist()
    rows = [",".join(map(str, [7, *row, 2 + 2 * (sum(row) > 45)])) for row in features]
    (tmp_path / "breast-cancer-wisconsin.data").write_text("\n".join([*rows, "7,1,1,1,1,1,?,1,1,1,2", ""]))
    arguments = ["gp-probit", "--quick", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--report"]) == 2
    assert "holds no draws yet" in capsys.readouterr().err
    assert main([*arguments, "--draws", "10", "--only", "APM-SS+MH"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["APM-SS-MH.pt"]
    assert main([*arguments, "--report"]) == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())["methods"]
    assert list(found) == ["APM-SS+MH"] and found["APM-SS+MH"]["num_draws"] == 10
    assert main([*arguments, "--draws", "10"]) == 0
    assert main([*arguments, "--draws", "20"]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(result["methods"]) == {"PM-MH", "APM-MI+MH", "APM-SS+MH", "APM-SS+SS"}
    assert result["data"]["num_features"] == 9
    assert main(["gp-probit", "--data", str(tmp_path / "out"), "--out", str(tmp_path)]) == 2
    assert "--data names the folder" in capsys.readouterr().err


@pytest.mark.slow
def test_vae_globals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vae-globals", "--quick", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["methods"]) == 6 and (tmp_path / "figure.png").stat().st_size > 10_000
    assert main(["vae-globals", "--run", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "none" in capsys.readouterr().err
