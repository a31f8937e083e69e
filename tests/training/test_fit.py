"""`fit`: training from Python leaves what `python train.py` leaves, and goes on where it stopped."""

from __future__ import annotations

import math
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from hmcvi.data import DataError, load_images
from hmcvi.internal.storage import load_json
from hmcvi.kernels import hamiltonian_chain
from hmcvi.models import VAE
from hmcvi.training import ConfigError, FittedRun, Run, fit, loop
from hmcvi.training.checkpoint import load

DIGITS = load_images("digits")
X, TEST = DIGITS.train[:300], DIGITS.test[:50]
FAST = ("evaluate.num_draws=1", "evaluate.nll_samples=20", "evaluate.validation_nll_samples=5")
FAST += ("train.checkpoint_seconds=0.0001",)


def model(seed: int = 0, **options: object) -> VAE:
    torch.manual_seed(seed)
    return VAE(64, 2, hamiltonian_chain(2, 64, 2, 2, hidden=(8,)), hidden=(16,), **options)


def weights(vae: VAE) -> list[torch.Tensor]:
    return [value.clone() for value in vae.state_dict().values()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def short(vae: VAE, folder: Path, epochs: int = 2, **options: object) -> FittedRun:
    return fit(vae, X, TEST, folder=folder, epochs=epochs, pretrain_epochs=1, settings=FAST, **options)


def test_a_run_in_five_lines(tmp_path: Path) -> None:
    vae = model()
    before, numbers = weights(vae), torch.get_rng_state()
    run = short(vae, tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), numbers)
    assert "refinement brought" in str(run)
    summary = load_json(tmp_path / "run" / "summary.json")
    assert [stage["name"] for stage in summary["stages"]] == ["vae", "chain"] and summary == run.summary
    for name in ("checkpoint.pt", "vae.pt", "chain.pt", "vae-scores.pt", "chain-scores.pt", "posterior.png"):
        assert (tmp_path / "run" / name).exists()
    assert list((tmp_path / "run").glob("events.*"))
    after = weights(vae)
    assert not same(before, after)
    assert same(after, list(load(tmp_path / "run" / "chain.pt")["model"].values()))


def test_progress_may_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short(model(), tmp_path / "silent", epochs=1, progress=False)
    assert capsys.readouterr() == ("", "")
    short(model(), tmp_path / "shown", epochs=1)
    assert "evaluating on" in capsys.readouterr().out


def test_the_seed_decides(tmp_path: Path) -> None:
    results = []
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        vae = model()
        short(vae, tmp_path / name, seed=seed)
        results.append(weights(vae))
    assert same(results[0], results[1]) and not same(results[0], results[2])


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_it_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """In either stage, after Ctrl-C; until it is finished the model is left as it was."""
    whole = model()
    short(whole, tmp_path / "whole")
    real, calls = loop.Trainer.train_batch, []

    def interrupted(self: loop.Trainer) -> None:
        real(self)
        calls.append(0)
        if len(calls) == batch:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loop.Trainer, "train_batch", interrupted)
    vae = model()
    before = weights(vae)
    with pytest.raises(KeyboardInterrupt, match=r"stopped and saved: fit\(\.\.\., folder="):
        short(vae, tmp_path / "part")
    assert same(weights(vae), before)
    short(vae, tmp_path / "part")
    assert len(calls) == 6  # three epochs of two batches
    assert same(weights(vae), weights(whole))


def test_a_finished_run_gives_its_weights_and_can_train_longer(tmp_path: Path) -> None:
    vae, fresh, longer = model(), model(1), model(1)
    first = short(vae, tmp_path / "run")
    again = short(fresh, tmp_path / "run")
    assert same(weights(fresh), weights(vae))
    assert again.summary["stages"] == first.summary["stages"]
    more = short(longer, tmp_path / "run", epochs=3)
    assert more.summary["stages"][-1]["epochs"] == 3
    with pytest.raises(ConfigError, match=r"finished, and train\.lr=0\.1"):
        short(model(), tmp_path / "run", epochs=3, lr=0.1)
    with pytest.raises(ConfigError, match=r"given: 270 .* choose another folder"):
        fit(model(), X[:200], TEST, folder=tmp_path / "run", epochs=2)
    for use in (lambda run: run.trained(), lambda run: run.load_images()):
        with pytest.raises(ConfigError, match="given its images and model by fit"):
            use(Run.open(tmp_path / "run"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_models_of_other_likelihoods_and_precisions(tmp_path: Path, dtype: torch.dtype) -> None:
    vae = VAE(63, 3, likelihood="gaussian", hidden=(16,)).to(dtype)
    images = (X[:, :63] * 255).to(torch.uint8).numpy().reshape(-1, 9, 7)
    run = fit(vae, images, folder=tmp_path / "run", epochs=1, settings=FAST)
    assert [len(split) for split in run.images[:3]] == [216, 24, 60] and run.images.shape == (9, 7)
    assert run.config.data.binarize == "none" and len(run.summary["stages"]) == 1
    assert math.isfinite(run.summary["stages"][0]["bound"])
    assert next(vae.parameters()).dtype == dtype


def test_without_a_folder_in_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs: list[FittedRun] = []
    options = {"epochs": 1, "validation": DIGITS.validation, "settings": (*FAST, "data.limit=100")}
    thread = threading.Thread(target=lambda: runs.append(fit(model(), X, TEST, **options)))
    thread.start()
    thread.join()
    assert (Path("runs") / runs[0].folder.name / "summary.json").exists()
    assert [len(split) for split in runs[0].images[:3]] == [100, 200, 50]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((X * 255,), {}, DataError, r"train: pixels must .* rescale them"),
        ((X, TEST[:, :63]), {}, DataError, "give all images one size"),
        ((np.zeros((30, 10)),), {}, ConfigError, "models 64 pixels, the images have 10"),
        ((X,), {"epochs": -1}, ConfigError, "at least 0, got -1"),
        ((X,), {"binarize": "grey"}, ConfigError, "dynamic, threshold, none, got 'grey'"),
        ((X,), {"validation": 300}, ValueError, "below 240, got 300"),
        ((X,), {"settings": ["chain.num_hmc=3"]}, ConfigError, "the images and the model are given"),
        ((X,), {"settings": ["train.epoch=3"]}, ConfigError, r"did you mean train\.epochs"),
    ],
)
def test_bad_input(tmp_path: Path, arguments, options, error, message: str) -> None:
    with pytest.raises(error, match=message):
        fit(model(), *arguments, folder=tmp_path / "run", **options)
