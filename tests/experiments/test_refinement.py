"""Training for a given time, paired gains, and the tables of the experiments on refinement."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from pathlib import Path

import pytest
import torch

from experiments.__main__ import main
from experiments.refinement import flagship, informed, methods, scores
from experiments.refinement.chains import ABLATION, chain_config
from experiments.refinement.points import make_points, of_seed, read_points, with_seeds
from experiments.refinement.training import WATCHED, Curve, Recipe, train_for
from hmcvi.data import load_images
from hmcvi.internal.storage import save
from hmcvi.models import VAE
from hmcvi.training import InterruptGuard
from hmcvi.training.build import build_chain
from tests.support.problems import LinearGaussian
from tests.support.statistics import Z

IMAGES = torch.rand(40, 6, generator=torch.Generator().manual_seed(0))


def small_vae(chain: str) -> VAE:
    torch.manual_seed(0)
    config = chain_config(ABLATION[chain])
    config.hidden = [8, 8]
    return VAE(6, 2, build_chain(config, 2, 6), hidden=(8,))


@pytest.mark.parametrize("chain", ABLATION)
def test_chains_have_twelve_forces(chain: str) -> None:
    """But one that draws candidates, and the one that does as much work in forces."""
    config = chain_config(ABLATION[chain])
    expected = {"annealed-candidates": 10, "annealed-mass-14": 14}.get(chain, 12)
    assert config.num_hmc * config.num_leapfrog == expected
    assert small_vae(chain).bound(IMAGES.round()).isfinite().all()


@pytest.mark.parametrize("method", methods.METHODS)
def test_methods_can_be_built(method: str) -> None:
    build_chain(chain_config(methods.METHODS[method].chain), 20, 784)


def test_training_moves_what_is_not_frozen_for_about_the_time() -> None:
    model = small_vae("annealed-informed")
    model.encoder.requires_grad_(False)
    model.decoder.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    spent = train_for(model, IMAGES, Recipe(seconds=0.3, lr=1e-2, batch_size=10))
    assert spent.steps > 1 and 0.3 <= spent.cpu_seconds < 1 and spent.skipped == 0
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all(name.startswith("chain.") for name in moved)


def test_training_is_followed_and_not_disturbed() -> None:
    """Bounds of averaged weights, whose time does not count."""
    model, looks = small_vae("annealed"), []

    def measure() -> dict:
        looks.append(model.state_dict()["encoder.net.0.weight"].clone())
        began = time.process_time()
        while time.process_time() - began < 0.1:
            pass
        return {"gain": float(len(looks))}

    curve = Curve(measure)
    spent = train_for(model, IMAGES, Recipe(seconds=0.5, lr=1e-2, batch_size=10), curve)
    assert 0.5 <= spent.cpu_seconds < 0.9
    assert [at["gain"] for at in curve.points] == list(range(1, len(WATCHED) + 1))
    times = [at["cpu_seconds"] for at in curve.points]
    assert times == sorted(times) and times[-1] == pytest.approx(spent.cpu_seconds, abs=0.05)
    assert torch.equal(looks[-1], model.state_dict()["encoder.net.0.weight"])


def test_points_of_other_seeds_follow_those_of_the_first(tmp_path: Path) -> None:
    for name in ("paper", "paper-seed-2", "paper-force"):
        (tmp_path / f"{name}.json").write_text("{}")
    expected = ["paper", "paper-seed-2", "paper-force"]
    assert with_seeds(["paper", "paper-force"], tmp_path) == expected and of_seed("paper", 2) == expected[1]


def test_bounds_are_below_the_likelihood_of_annealing() -> None:
    """On a linear Gaussian model, whose likelihood is known."""
    problem = LinearGaussian()
    vae, x = problem.vae(), problem.data(30)
    exact = problem.log_evidence(x)
    found = scores.log_likelihoods(vae, x, num_chains=500, num_temperatures=20)
    assert scores.gain(found, exact, "error")["error"] == pytest.approx(0.0, abs=0.02)
    gap = scores.gain(exact, scores.bounds(vae, x.expand(20, -1, -1)), "gap")
    assert gap["gap"] > 4 * gap["gap_se"] > 0


def test_gains_are_paired() -> None:
    old = torch.linspace(-100, 100, 50, dtype=torch.float64)
    found = scores.gain(old + 1.0, old, "gain")
    assert found["gain"] == pytest.approx(1.0) and found["gain_se"] == pytest.approx(0.0, abs=1e-12)


def test_points_that_exist_are_left_alone(tmp_path: Path) -> None:
    made: list[str] = []

    def make(name: str) -> dict:
        made.append(name)
        return {"value": len(made)}

    with InterruptGuard() as guard:
        make_points(["a", "b"], tmp_path, make, guard)
        make_points(["a", "b", "c"], tmp_path, make, guard)
    assert made == ["a", "b", "c"]
    assert read_points(["a", "c", "d"], tmp_path) == {
        "a": {"name": "a", "value": 1},
        "c": {"name": "c", "value": 3},
    }


def test_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "likelihood.json").write_text(json.dumps({"gap": 5.0}))
    for name, seed in (("paper", 0), ("annealed", 0), ("annealed", 1)):
        config = chain_config(ABLATION[name]).__dict__
        curve = [{"cpu_seconds": at, "gain": at / 9, "gain_se": 0.1} for at in (1.0, 3.0, 9.0)]
        point = {"bound": -91.0, "gain": 1.0, "gain_se": 0.1, "chain": config, "seed": seed, "curve": curve}
        (tmp_path / f"{of_seed(name, seed)}.json").write_text(json.dumps(point))
    assert informed.report(tmp_path) == 0
    table = capsys.readouterr().out
    for seed in (0, 1):
        assert (
            f"| annealed | {seed} | 12 × 1 | encoder | – | identity | 91.00 | 1.00 ± 0.10 | 20 % |" in table
        )
    for figure in ("figure", "curves"):
        assert (tmp_path / f"{figure}.png").stat().st_size > 1000


def test_table_of_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, shift in (("vae", 0.0), ("uha", 2.0)):
        figures = {"bound": -92.0 + shift, "log_likelihood": -87.0 + shift}
        point = {"title": name, "seed": 0, "steps": 7, **figures}
        (tmp_path / f"{name}-0.json").write_text(json.dumps(point))
        save({q: torch.full((9,), value) for q, value in figures.items()}, tmp_path / f"{name}-0.pt")
    assert methods.report(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| uha | 0 | 90.00 | +2.00 ± 0.00 | 85.00 | +2.00 ± 0.00 | 5.00 | 7 |"
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_a_likelihood_below_the_bound_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, likelihood in (("vae", -87.0), ("iaf", -118.0)):
        figures = {"bound": -92.0, "log_likelihood": likelihood}
        (tmp_path / f"{name}-0.json").write_text(
            json.dumps({"title": name, "seed": 0, "steps": 7, **figures})
        )
        save({q: torch.full((9,), value) for q, value in figures.items()}, tmp_path / f"{name}-0.pt")
    assert methods.report(tmp_path) == 0
    out = capsys.readouterr().out
    assert "118" not in out and "left out: iaf-0" in out


@pytest.mark.parametrize("experiment", [informed, methods])
def test_unknown_names_are_refused(experiment: object, capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    experiment.configure(parser)  # type: ignore[attr-defined]
    assert experiment.run(parser.parse_args(["uuha"])) == 2  # type: ignore[attr-defined]
    assert "uuha" in capsys.readouterr().err


def flagship_at(out: Path, *arguments: str) -> int:
    small = [
        "data.name=digits", "model.latent_dim=2", "model.hidden=[8]", "chain.hidden=[8]", "chain.num_hmc=2",
        "train.pretrain_epochs=1", "train.epochs=1", "train.batch_size=400", "train.compile=false",
    ]  # fmt: skip
    settings = [argument for setting in small for argument in ("--set", setting)]
    return main(
        ["flagship", "--out", str(out), "--chains", "4", "--temperatures", "5", *settings, *arguments]
    )


def test_the_flagship_is_trained_once_and_tested_on_fixed_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On digits, and with digits in the place of the binarised images."""
    digits = load_images("digits")
    fixed = digits._replace(test=digits.test.round())
    monkeypatch.setattr(flagship, "load_images", lambda name, root: fixed)
    monkeypatch.setattr(flagship, "NUM_DRAWS", 2000)
    out = tmp_path / "flagship"
    assert flagship_at(out, "--images", "20") == 0
    files = (out / f"{name}.json" for name in ("annealing", "importance"))
    annealed, sampled = (json.loads(path.read_text()) for path in files)
    assert annealed["num_images"] == sampled["num_images"] == 20 and annealed["epochs"] == 1
    assert abs(annealed["nll"] - sampled["nll"]) < Z * annealed["nll_sampling_se"]
    assert annealed["nll"] < -annealed["bound"]
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    capsys.readouterr()
    assert flagship_at(out) == 0 and flagship_at(out, "--report") == 0
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert f"{annealed['nll']:.2f} ± {annealed['nll_se']:.2f} |" in capsys.readouterr().out


def test_without_results_the_flagship_has_no_report(tmp_path: Path) -> None:
    assert flagship_at(tmp_path, "--report") == 2
