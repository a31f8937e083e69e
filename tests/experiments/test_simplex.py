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
