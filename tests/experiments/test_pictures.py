"""The pictures show what the kernels do: brackets, heights and energies obey their laws."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.__main__ import main
from experiments.pictures import hmc, jumps, manifolds, slices
from experiments.pictures.slice_traces import Trace, ellipse_trace, line_trace, reflected_trace

F64 = torch.float64


def traces(name: str) -> list[Trace]:
    generator = torch.Generator().manual_seed(0)
    point = {"line": [-0.9], "ellipse": [0.8, 0.6], "square": [0.35, 0.7]}[name]
    start = torch.tensor(point, dtype=F64)

    def trace() -> Trace:
        if name == "line":
            return line_trace(slices.two_humps, start, 1.1, 4, generator)
        if name == "ellipse":
            return ellipse_trace(slices.posterior, start, generator)
        return reflected_trace(slices.corner, start, 2.2, generator)

    return [trace() for _ in range(50)]


def level(name: str, position: Tensor) -> Tensor:
    if name == "line":
        return slices.two_humps(position)
    if name == "ellipse":
        return slices.posterior(position) + 0.5 * position.square().sum(-1)
    return slices.corner(position)


@pytest.mark.parametrize("name", ["line", "ellipse", "square"])
def test_misses_lie_below_the_height_and_ends_above(name: str) -> None:
    """Else the random numbers drawn again for the picture are not those the kernel had."""
    all_traces = traces(name)
    assert sum(len(trace.misses) for trace in all_traces) > 10
    for trace in all_traces:
        assert level(name, trace.end) > trace.height
        assert all(level(name, miss) <= trace.height for miss in trace.misses)


@pytest.mark.parametrize("name", ["ellipse", "square"])
def test_points_lie_on_the_curve(name: str) -> None:
    for trace in traces(name):
        for point in [*trace.misses, trace.end]:
            assert (trace.curve - point).norm(dim=-1).min() < 0.02


def test_brackets_hold_the_start_and_what_was_tried() -> None:
    for trace in traces("line"):
        assert all(bracket.lower <= float(trace.start) <= bracket.upper for bracket in trace.brackets)
        assert trace.brackets[-1].lower <= float(trace.end) <= trace.brackets[-1].upper
        outward = trace.brackets[: 1 + len(trace.edges)]
        for before, after in pairwise(outward):
            assert after.point == pytest.approx(
                before.lower if after.point < trace.start else before.upper, abs=1e-12
            )


def test_trajectories_keep_their_energy() -> None:
    paths = hmc.two_trajectories(torch.Generator().manual_seed(0))
    for path in paths:
        energies = torch.stack([0.5 * state.momentum.square().sum() - state.log_prob for state in path])
        assert float(energies.max() - energies.min()) < 0.05


def test_a_step_takes_kinetic_energy_or_turns_a_particle_round() -> None:
    for name, speed in jumps.SPEEDS.items():
        found = jumps.summary(*jumps.path(speed))
        assert found["largest_energy_error"] < 1e-12
        gained = jumps.STEP if name == "over the step" else 0.0
        assert found["final_velocity"] ** 2 == pytest.approx(speed**2 - 2 * gained)
        assert (found["final_position"] > 0) == (gained > 0)


@pytest.mark.parametrize("name", ["hmc-picture", "slice-picture"])
def test_an_experiment_writes_its_figure_and_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (hmc, slices):
        monkeypatch.setattr(module, "NUM_CHAINS", 4)
        monkeypatch.setattr(module, "NUM_DRAWS", 60)
    assert main([name, "--out", str(tmp_path), "--seed", "1"]) == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    result = json.loads((tmp_path / "result.json").read_text())
    if name == "hmc-picture":
        assert all(0 <= rate <= 1 for rate in result["acceptance"]["acceptance_rate"])
    else:
        assert result["line"]["num_misses"] in (2, 3)


def test_bridges_are_densities_between_their_ends() -> None:
    x = torch.linspace(-12, 12, 2001, dtype=F64)
    for beta in (0.0, 0.4, 1.0):
        assert float(manifolds.bridge(x, beta).exp().sum() * (x[1] - x[0])) == pytest.approx(1)
    normal = torch.distributions.Normal(0.0, 2.0).log_prob(x)
    torch.testing.assert_close(manifolds.bridge(x, 0.0), normal, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_only_noise_connects_the_two_parts(tmp_path: Path) -> None:
    assert main(["manifold-picture", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["share_of_chains_that_crossed"] == {"noise 0": 0.0, "noise 0.5": 1.0}
    assert result["ridge"]["largest_distance_of_constrained_draws"] < 1e-8
    assert result["ridge"]["changes_of_side"] > 5
