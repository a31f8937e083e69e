"""`hmcvi inpaint`, on small models of the bundled digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hmcvi.commands import inpaint as inpaint_command
from hmcvi.commands import main
from hmcvi.commands.inpaint_chains import Length, Problem, inpaint
from hmcvi.data import load_images
from hmcvi.internal import storage
from hmcvi.models import Inpainting
from hmcvi.training import Run
from tests.support.problems import LinearGaussian
from tests.support.training_runs import train, train_both_likelihoods

FEW = ["--samples", "6", "--warmup", "5", "--chains", "2", "--images", "2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_both_likelihoods(tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
def test_a_gaussian_run_is_in_painted_by_both_methods(runs: Path, tmp_path: Path) -> None:
    """Observed pixels come back to the tolerance, also from the file; missing ones are new."""
    assert main(["inpaint", str(runs / "gaussian"), "--out", str(tmp_path), "--mask", "left:0.25", *FEW]) == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    methods = json.loads((tmp_path / "result.json").read_text())["methods"]
    assert list(methods) == ["constrained", "hmc"]
    assert methods["constrained"]["largest_distance"] < 1e-8
    assert methods["hmc"]["largest_distance"] is None
    for report in methods.values():
        assert report["acceptance_rate"] > 0.3 and report["cpu_seconds"] > 0
        for name in ("least_ess", "worst_r_hat", "rmse_of_missing_pixels"):
            assert len(report[name]) == 2 and all(value > 0 for value in report[name])
    saved = storage.load(tmp_path / "samples.pt")
    originals = load_images("digits").test[:2]
    assert torch.equal(saved["originals"], originals)
    missing = saved["missing"]
    assert torch.equal(missing.view(8, 8)[0], torch.arange(8) < 2)
    for method, tolerance in (("constrained", 1e-8), ("hmc", 0.0)):
        images, latents = saved[method]["images"], saved[method]["latents"]
        assert images.shape == (2, 12, 64) and latents.shape == (2, 12, 3)
        off = (images - originals[:, None]).abs()
        assert off[..., ~missing].max() <= tolerance
        assert off[..., missing].min() > 0


@pytest.mark.slow
def test_a_bernoulli_run_is_in_painted_by_hmc(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs / "bernoulli"
    assert main(["inpaint", str(run), "--mask", "random:0.9", *FEW]) == 0
    saved = storage.load(run / "inpainting" / "samples.pt")
    assert set(saved["hmc"]["images"].unique().tolist()) == {0.0, 1.0}
    assert "constrained" not in saved
    for method in ("constrained", "both"):
        assert main(["inpaint", str(run), "--method", method, *FEW]) == 2
        assert "--method hmc" in capsys.readouterr().err


def test_the_seed_decides(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inpaint_command.THIN, "hmc", 1)
    saved = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        arguments = ["--method", "hmc", "--out", str(tmp_path / name), "--seed", seed, *FEW]
        assert main(["inpaint", str(runs / "gaussian"), *arguments]) == 0
        saved.append(storage.load(tmp_path / name / "samples.pt")["hmc"]["images"])
    assert torch.equal(saved[0], saved[1]) and not torch.equal(saved[0], saved[2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mask", "botom"], "did you mean bottom"),
        (["--out", __file__], "cannot make the folder"),
        (["--mask", "top:2"], "between 0 and 1"),
        (["--images", "301"], "300 test images, 301 were asked for"),
        (["--images", "0"], "--images must be at least 1"),
        (["--samples", "3"], "--samples must be at least 4"),
        (["--warmup", "-1"], "--warmup must be at least 0"),
        (["--chains", "1"], "--chains must be at least 2"),
        (["--seed", "-1"], "--seed must be at least 0"),
    ],
)
def test_bad_options(
    arguments: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inpaint", str(runs / "gaussian"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_bad_runs(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = (runs / "gaussian" / "config.yaml").read_text()
    for name, text in (("unfinished", config), ("damaged", config), ("other", config.replace("- 16", "- 5"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    (tmp_path / "damaged" / "vae.pt").write_bytes(b"no weights")
    (tmp_path / "other" / "vae.pt").write_bytes((runs / "gaussian" / "vae.pt").read_bytes())
    for name, message in (
        ("nowhere", "is not the folder of a run"),
        (".", "is not the folder of a run"),
        ("unfinished", "--resume"),
        ("damaged", "damaged"),
        ("other", "another architecture"),
    ):
        assert main(["inpaint", str(tmp_path / name), *FEW]) == 2, name
        assert message in capsys.readouterr().err


def test_the_last_stage_is_used(runs: Path, tmp_path: Path) -> None:
    """Of a refined run the weights of the chain's stage, whatever the chain."""
    overrides = ["chain.num_hmc=1", "chain.hidden=[8]", "train.pretrain_epochs=1"]
    train(tmp_path, "refined", "hmcvi.yaml", overrides)
    vae, _ = Run.open(tmp_path / "refined").trained()
    weights = storage.load(tmp_path / "refined" / "chain.pt")["model"]
    assert torch.equal(vae.decoder.state_dict()["0.weight"], weights["decoder.0.weight"])


def test_what_is_reported_is_so() -> None:
    """Errors of the mean of the missing pixels and distances, from draws of a linear model."""
    model = LinearGaussian(latent_dim=2, data_dim=4)
    missing = torch.tensor([True, False, False, True])
    problem = Problem(Inpainting(model.vae(), missing), model.data(2), num_chains=3)
    outcome = inpaint(problem, "constrained", Length(5, 7, 2), seed=0, progress=False)
    assert outcome.latents.shape == (2, 3, 7, 2)
    loc = outcome.latents @ model.weight.T + model.bias
    error = (loc.mean((1, 2)) - problem.images)[:, missing].square().mean(-1).sqrt()
    torch.testing.assert_close(outcome.rmse(), error)
    distance = outcome.distance()
    assert distance is not None and 0 < distance < 1e-8
    assert outcome.spread(3).tolist() == [0, 3, 6] and outcome.spread(50).tolist() == list(range(7))
