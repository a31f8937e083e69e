"""The experiments with tempering run on small data, and say what is missing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.__main__ import main
from experiments.models import BoltzmannMachine, Relaxation
from experiments.models.boltzmann import Moments
from experiments.tempering import boltzmann, iwae, radon, systems
from hmcvi.density import Density
from hmcvi.evidence import Grid, sigmoidal, tempered_evidence
from tests.support.iwae_weights import write_weights
from tests.support.problems import F64
from tests.support.statistics import Z


def write_systems(folder: Path, num_units: int = 5) -> None:
    """Two machines in the files of the published ones."""
    for index in range(2):
        machine = BoltzmannMachine.random(
            num_units, generator=torch.Generator().manual_seed(index), scale=2.0
        )
        relaxation, exact = Relaxation.of(machine), machine.exact_moments()
        second = exact.covariance + exact.mean[:, None] * exact.mean
        np.savez(folder / f"params_and_moms_{index}.npz", weights=machine.weights, biases=machine.biases)
        np.savez(
            folder / f"exact_recomputed_{index}.npz",
            log_norm_const_s=exact.log_z,
            expc_s=exact.mean,
            expc_ss=second,
            D=relaxation.diagonal,
            Q=relaxation.root,
        )


@pytest.mark.slow
def test_boltzmann_writes_its_figure_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boltzmann, "QUICK_PIECES", dict.fromkeys(boltzmann.METHODS, (20, 20)))
    write_systems(tmp_path)
    out = tmp_path / "out"
    assert main(["boltzmann", "--quick", "--data", str(tmp_path), "--out", str(out)]) == 0
    assert (out / "figure.png").stat().st_size > 10_000
    result = json.loads((out / "result.json").read_text())
    assert list(result["methods"]) == list(boltzmann.METHODS)
    for curve in result["methods"].values():
        assert curve[-1]["log_z"]["rmse"] < 0.5


@pytest.mark.parametrize("name", boltzmann.METHODS)
def test_every_method_agrees_with_the_enumerated_moments(name: str, tmp_path: Path) -> None:
    """log Z within its errors, and errors of moments that shrink to what so many draws leave."""
    write_systems(tmp_path)
    posed = systems.problem(*systems.read(tmp_path), seed=0)
    evidence = boltzmann.METHODS[name](posed, 200, 2, 0)
    found = evidence.per_item
    assert ((found.log_z - posed.truth.log_z).abs() < Z * found.std_error).all()
    report = boltzmann.errors(boltzmann.pooled([boltzmann.sums(evidence)]), posed.truth)
    assert report["mean"]["rmse"] < 0.3 and report["covariance"]["rmse"] < 1.0


def test_pieces_are_worth_their_draws_together(tmp_path: Path) -> None:
    """Two halves of the draws pooled are all of them."""
    write_systems(tmp_path)
    posed = systems.problem(*systems.read(tmp_path), seed=0)
    whole = boltzmann.METHODS["AIS"](posed, 40, 2, 0)
    assert whole.position is not None and whole.log_weight is not None
    halves = [
        replace(
            whole,
            position=whole.position[part],
            log_weight=whole.log_weight[part],
            per_item=whole.per_item._replace(log_z=whole.log_weight[part].logsumexp(0) - math.log(size)),
        )
        for part, size in ((slice(10), 10), (slice(10, None), 30))
    ]
    torch.testing.assert_close(
        boltzmann.pooled([boltzmann.sums(half) for half in halves]),
        boltzmann.pooled([boltzmann.sums(whole)]),
    )


def test_missing_systems_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "ALL_SYSTEMS", 3)
    write_systems(tmp_path)
    given, states = systems.read(tmp_path)
    relaxation, moments = systems.completed(given, states, 0)
    assert relaxation.root.shape == (3, 5, 5) and moments.covariance.shape == (3, 5, 5)
    torch.testing.assert_close(moments.mean[:2], states.mean)
    exact = relaxation.machine.exact_moments()
    torch.testing.assert_close(moments, exact)


def test_the_base_has_the_axes_of_its_covariance(tmp_path: Path) -> None:
    """Rotating coordinates moves no error: the base is as far from the truth as in those of the files."""
    write_systems(tmp_path)
    relaxation, states = systems.read(tmp_path)
    posed = systems.problem(relaxation, states, seed=0)
    torch.testing.assert_close(posed.truth.log_z, relaxation.moments(states).log_z)
    torch.testing.assert_close(
        posed.truth.covariance.diagonal(dim1=-2, dim2=-1).sum(-1),
        relaxation.moments(states).covariance.diagonal(dim1=-2, dim2=-1).sum(-1),
    )
    assert (posed.log_zeta < posed.truth.log_z + 0.5).all()


def test_errors_are_root_mean_squares() -> None:
    truth = Moments(torch.zeros(2, dtype=F64), torch.zeros(2, 3, dtype=F64), torch.zeros(2, 3, 3, dtype=F64))
    found = Moments(
        torch.tensor([3.0, -4.0], dtype=F64), torch.ones(2, 3, dtype=F64), 2 * torch.ones(2, 3, 3, dtype=F64)
    )
    report = boltzmann.errors(found, truth)
    assert [report[name]["rmse"] for name in ("log_z", "mean", "covariance")] == pytest.approx(
        [12.5**0.5, 1, 2]
    )
    assert report["mean"]["se"] == 0


@pytest.mark.slow
def test_images_are_bounded_from_both_sides(tmp_path: Path) -> None:
    (tmp_path / "omni-iwae").mkdir()
    write_weights(tmp_path / "omni-iwae")
    out = tmp_path / "out"
    assert main(["iwae-evidence", "--quick", "--data", str(tmp_path), "--out", str(out)]) == 0
    assert (out / "figure.png").stat().st_size > 10_000
    result = json.loads((out / "result.json").read_text())
    assert list(result["models"]) == ["Omniglot"]
    bounds = result["models"]["Omniglot"]["sandwich"]
    error = bounds["lower"]["sampling_se"] + bounds["upper"]["sampling_se"]
    assert bounds["gap"] > -Z * error
    middle = (bounds["lower"]["mean"] + bounds["upper"]["mean"]) / 2
    for curve in result["models"]["Omniglot"]["methods"].values():
        last = curve[-1]
        assert last["mean"] == pytest.approx(middle + last["bias"])
        assert abs(last["bias"]) < Z * (last["bias_se"] + error)
        assert [point["cpu_seconds"] for point in curve] == sorted(point["cpu_seconds"] for point in curve)
    kept = {file: file.stat().st_mtime_ns for file in (out / "parts").iterdir()}
    assert main(["iwae-evidence", "--quick", "--data", str(tmp_path), "--out", str(out)]) == 0
    assert json.loads((out / "result.json").read_text()) == result
    assert kept == {file: file.stat().st_mtime_ns for file in (out / "parts").iterdir()}


def test_points_are_errors_of_all_runs() -> None:
    """Against a reference of two images by hand: biases ±1, squares 1 and 4."""
    log_z = torch.tensor([[[1.0, 5.0]], [[-1.0, 1.0]]])  # [runs, points, images]
    reference = torch.tensor([0.0, 3.0], dtype=F64)
    (point,) = iwae.curve({"log_z": log_z, "sizes": [7], "cpu_seconds": [0.5]}, reference)
    assert point["bias"] == 0 and point["mean"] == 1.5 and point["size"] == 7
    assert point["rmse"] == pytest.approx(2.5**0.5)
    assert point["rmse_se"] == pytest.approx(torch.tensor([1.0, 4.0]).std() / 2**0.5 / (2 * 2.5**0.5))


def write_houses(folder: Path) -> None:
    """Houses in eight counties, drawn from the model."""
    rng = np.random.default_rng(0)
    county, x = rng.permutation(np.arange(24) % 8), rng.integers(0, 2, 24).astype(float)
    u = rng.standard_normal(8)[county]
    y = 1 + 0.5 * rng.standard_normal(8)[county] - 0.6 * x + 0.7 * u + 0.8 * rng.standard_normal(24)
    np.savez(folder / "radon-group.npz", y=y, x=x, u=u, county=county)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.evidence.EvidenceWarning")
def test_radon_finds_the_evidence_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # weights have heavy tails: errors of 20 chains of 100 temperatures are too small
    sizes = replace(
        radon.QUICK,
        num_temperatures=400,
        num_ais_chains=400,
        num_samples=dict.fromkeys(radon.METHODS, 150),
        num_warmup=50,
    )
    monkeypatch.setattr(radon, "QUICK", sizes)
    write_houses(tmp_path)
    out = tmp_path / "out"
    assert main(["radon", "--quick", "--data", str(tmp_path), "--out", str(out)]) == 0
    assert (out / "figure.png").stat().st_size > 10_000
    result = json.loads((out / "result.json").read_text())
    exact, found = result["exact"], result["ais"]
    assert result["num_data"] == 24 and result["num_parameters"] == 15
    assert result["advi"][-1]["bound"] < exact
    assert abs(found["log_z"] - exact) < Z * found["std_error"] < 2
    assert list(result["methods"]) == list(radon.METHODS)
    for report in result["methods"].values():
        assert abs(report["curve"][-1]["mean"] - exact) < exact - result["advi"][-1]["bound"]
        assert report["rmse"] ** 2 == pytest.approx(np.square(np.subtract(report["log_z"], exact)).mean())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.evidence.EvidenceWarning")
def test_shares_of_the_evidence_add_up(tmp_path: Path) -> None:
    """The exact ones to nearly one, what lies outside being little; those of a run to its estimate."""
    write_houses(tmp_path)
    out = tmp_path / "out"
    assert main(["radon-tails", "--quick", "--data", str(tmp_path), "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    assert 0.95 < sum(result["exact"]["shares"]) < 1.001
    for found in result["runs"].values():
        total = sum(entry["share"] for entry in found["shares"])
        assert total <= math.exp(found["log_z"] - result["exact"]["log_z"]) * (1 + 1e-9)


def test_quadrature_is_exact_for_heavy_tails_and_correlations() -> None:
    """Logistic distributions, sheared: Z = 1, with the tails that scales have on a logarithmic axis."""
    shear = torch.tensor([[1.0, 0.0, 0.0], [0.8, 1.0, 0.0], [-0.3, 0.5, 1.0]], dtype=F64)

    def log_prob(z: torch.Tensor) -> torch.Tensor:
        v = (z - 2) @ shear.T
        return (torch.nn.functional.logsigmoid(v) + torch.nn.functional.logsigmoid(-v)).sum(-1)

    assert abs(float(radon.log_integral(Density(log_prob), 3))) < 1e-9


def test_quadrature_has_converged(tmp_path: Path) -> None:
    write_houses(tmp_path)
    marginal = Density(radon.read(tmp_path).log_marginal)
    coarse, fine = (radon.log_integral(marginal, 3, count) for count in (31, 61))
    torch.testing.assert_close(coarse, fine, rtol=0, atol=1e-6)


def test_running_estimates_end_where_all_draws_lead() -> None:
    delta = torch.randn(50, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    running = radon.running_estimates(delta, torch.tensor(2.0, dtype=F64))
    whole = [tempered_evidence(torch.zeros(50, 1, 1), d[:, None], 2.0).log_z for d in delta.T]
    torch.testing.assert_close(running[-1], torch.stack(whole))
    torch.testing.assert_close(running[0], 2 - delta[0])  # w_1 / w_0 = e^{−Δ}
    grid = Grid(sigmoidal(10))
    coarse = radon.running_estimates(delta, 2.0, grid)
    whole = [tempered_evidence(torch.zeros(50, 1, 1), d[:, None], 2.0, grid).log_z for d in delta.T]
    torch.testing.assert_close(coarse[-1], torch.stack(whole))


def test_radon_names_what_a_file_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "radon-group.npz", y=np.zeros(3))
    assert main(["radon", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "has no x" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["boltzmann", "iwae-evidence", "radon"])
def test_missing_files_are_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "--data names the folder" in capsys.readouterr().err
