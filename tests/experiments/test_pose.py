"""The experiment with poses runs, starts and stays on the data, and measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.__main__ import main
from experiments.models.pose import PosePrior
from experiments.pose import read_curves
from experiments.pose.chains import EPSILON, Run, scenes, with_noise
from tests.support.poses import write_prior


@pytest.mark.slow
def test_it_writes_its_figure_and_numbers(tmp_path: Path) -> None:
    data, out = write_prior(tmp_path / "data"), tmp_path / "out"
    (data / "binocular-pose-rmse-chmc-2.csv").write_text("t r\n0 0.3\n4.5 0.2\n")
    arguments = ["--data", str(data), "--thesis", str(data), "--out", str(out), "--quick"]
    assert main(["pose", *arguments]) == 0
    assert (out / "figure.png").stat().st_size > 10_000
    result = json.loads((out / "result.json").read_text())
    exact, near = (result["binocular"][name] for name in ("constrained HMC", "HMC"))
    for report in (exact, near):
        assert len(report["scenes"]) == 3
        for scene in report["scenes"]:
            assert [len(curve) for curve in scene["rmse"]] == [len(report["seconds_per_chain"])] * 2
    assert all(scene["largest_distance"] < 1e-8 for scene in [*exact["scenes"], result["monocular"]])
    assert all(scene["acceptance_rate"] > 0.5 for scene in exact["scenes"])


def test_starts_are_on_the_data(tmp_path: Path) -> None:
    scene = scenes(PosePrior.load(write_prior(tmp_path)), 2, slice(3))
    generator, noisy = scene.generator, scene.generator.noisy(EPSILON)
    u = generator.sample(3, generator=torch.Generator().manual_seed(0))
    start = with_noise(generator, u, scene.observed)
    torch.testing.assert_close(noisy.observed(start), scene.observed)
    again = with_noise(generator, scene.inputs[:, : generator.dim], scene.observed)
    torch.testing.assert_close(again, scene.inputs)


def test_errors_are_those_of_the_mean_so_far(tmp_path: Path) -> None:
    generator = scenes(PosePrior.load(write_prior(tmp_path)), 1).generator
    u = generator.sample(2, 3, generator=torch.Generator().manual_seed(0))
    joints = generator.latent(u)["joints"]
    errors = Run(u, torch.arange(3.0), torch.ones(2, 3)).errors(generator, joints[0, 0])
    assert errors.shape == (2, 3) and float(errors[0, 0]) == 0.0
    last = (joints[1].mean(0) - joints[0, 0]).square().mean().sqrt()
    torch.testing.assert_close(errors[1, 2], last)


def test_folders_without_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pose", "--data", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "lacks joint-angles" in capsys.readouterr().err
    with pytest.raises(ValueError, match="binocular-pose-rmse"):
        read_curves(tmp_path)
