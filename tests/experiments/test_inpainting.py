"""The experiment with in-painting, on small models of the bundled digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import inpainting
from experiments.__main__ import main
from experiments.inpainting import figure
from hmcvi.commands.inpaint_chains import Length
from tests.support.training_runs import train_both_likelihoods


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_both_likelihoods(tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
@pytest.mark.parametrize("with_run", [True, False])
def test_the_experiment(with_run: bool, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a shorter figure, of fewer draws."""
    monkeypatch.setattr(figure, "COLUMNS", 4)
    monkeypatch.setattr(inpainting, "QUICK_LENGTHS", dict.fromkeys(inpainting.METHODS, Length(3, 8)))
    given = ["--run", str(runs / "gaussian")] if with_run else []
    assert main(["inpainting", "--out", str(tmp_path), "--quick", *given]) == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["methods"]["constrained"]["largest_distance"] < 1e-8
    assert result["settings"]["latent_dim"] == (3 if with_run else 8)


def test_the_experiment_needs_continuous_pixels(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--run", str(runs / "bernoulli"), "--out", str(tmp_path), "--quick"]
    assert main(["inpainting", *arguments]) == 2
    assert "binary" in capsys.readouterr().err
