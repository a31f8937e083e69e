"""The targets are Dirichlet distributions in every transform, and errors of means fall as they should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments import simplex
from experiments.__main__ import main
from experiments.simplex.targets import CONCENTRATIONS, TRANSFORMS, Coordinates, dirichlet
from tests.support.statistics import assert_mean

over_transforms = pytest.mark.parametrize("coordinates", TRANSFORMS, ids=lambda c: c.name)

ROOT = Path(__file__).parents[2]


@over_transforms
@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_hmc_keeps_the_distribution_in_every_transform(coordinates: Coordinates, concentration: str) -> None:
    torch.manual_seed(0)
    target = dirichlet(concentration, 4)
    kernel = simplex.HMC(coordinates.density(target), 0.3, 5)
    state = kernel.init(coordinates.pull_back(target).sample((1000,)))
    assert state.position.shape == (1000, coordinates.dim(4))
    for _ in range(4):
        state, _ = kernel.step(state)
    x = coordinates.to_simplex(state.position)
    assert_mean(x, target.mean)
    assert_mean((x - target.mean).square(), target.variance)


def test_the_finding_is_that_of_the_runs() -> None:
    """Of the stored result; shares of the best, which is first."""
    result = json.loads((ROOT / "results" / "simplex" / "result.json").read_text())
    assert result["finding"] == simplex.finding(result["runs"])
    assert simplex.shares({"a": 2.0, "b": 4.0}) == {"b": 1.0, "a": 0.5}
    assert result["finding"]["α = 0.1, K = 10"]["median"]["augmented softmax"] == pytest.approx(
        1 / 3, abs=0.02
    )


@pytest.mark.slow
def test_runs_and_says_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplex, "QUICK_SIZES", (3,))
    monkeypatch.setattr(simplex, "QUICK_DRAWS", 40)
    monkeypatch.setattr(simplex, "QUICK_WARMUP", 25)
    assert main(["simplex", "--quick", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["runs"]) == 12 and len(result["finding"]) == 4
    for run in result["runs"]:
        assert run["ess_per_leapfrog"] > 0 and run["rmse"][-1] < run["rmse"][0]
    for name in ("figure", "figure-seconds", "figure-rmse"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
