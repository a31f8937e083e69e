"""Guides of Pyro refined by chains of twelve forces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.refinement import pyro_model


def test_guides_have_twelve_forces() -> None:
    for name, guide in pyro_model.GUIDES.items():
        forces = guide["num_hmc"] * guide.get("num_leapfrog", 1)
        assert forces == (0 if name == pyro_model.BASE else 12)


@pytest.mark.slow
def test_guides_are_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pyro_model, "NUM_DRAWS", 500)
    command = ["informed-pyro", "likelihood", "base", "annealed", "--seconds", "0.5", "--out", str(tmp_path)]
    assert main(command) == 0
    points = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert points["likelihood"]["log_z"] == pytest.approx(-31.31, abs=0.05)  # results/benchmarks/guides.jsonl
    for name in ("base", "annealed"):
        bound, error = points[name]["bound"], points[name]["bound_se"]
        assert points[name]["steps"] > 0 and bound < points["likelihood"]["log_z"] + 4 * error
    assert main(command) == 0
    assert "| base | −" in capsys.readouterr().out


def test_a_report_needs_the_gap(tmp_path: Path) -> None:
    assert main(["informed-pyro", "--report", "--out", str(tmp_path)]) == 2
