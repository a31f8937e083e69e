"""Opening what was trained: the model comes back with its chain, whether its images are there or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import hmcvi
from hmcvi.training import CheckpointError, ConfigError, Run
from hmcvi.training.checkpoint import load, save
from tests.training.conftest import ROOT


def test_a_run_is_opened_with_its_chain(finished: Path) -> None:
    run = hmcvi.load_run(finished)
    weights = load(finished / "chain.pt")["model"]
    assert run.stage == "chain" and not run.model.training
    assert run.model.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in run.model.state_dict().items())
    x = run.images.test[:4]
    assert run.model.refine(x, num_samples=3).shape == (3, 4, 2)
    assert run.summary["stages"][-1]["name"] == "chain"
    assert run.scores.keys() == {"vae", "chain"} and run.scores["chain"]["bound"].shape == (300,)


def test_its_figures_come_back(finished: Path) -> None:
    """The mean of the stored scores is what the summary says."""
    run = hmcvi.load_run(finished)
    last = run.summary["stages"][-1]
    assert run.scores["chain"]["bound"].mean().item() == pytest.approx(last["bound"], rel=1e-5)


def test_run_trained_keeps_the_chain(finished: Path) -> None:
    model, images = Run.open(finished).trained()
    assert len(model.chain.steps) > 0 and images.shape == (8, 8)


def test_images_need_not_be_there(finished: Path) -> None:
    run = hmcvi.load_run(finished, ["data.name=mnist", "data.root=nowhere", "data.download=false"])
    assert run.model.data_dim == 64
    with pytest.raises(ValueError, match="nowhere"):
        _ = run.images


@pytest.mark.parametrize("name", ["basic-vi-20d", "hmcvi-14", "annealed-2d", "informed-20d"])
def test_results_of_the_repository_open(name: str) -> None:
    run = hmcvi.load_run(ROOT / "results" / "table1" / name)
    refined = run.model.refine(torch.zeros(2, 784))
    assert refined.shape[-1] == run.config.model.latent_dim and refined.isfinite().all()
    assert run.summary["stages"][0]["bound"] < 0


def test_the_flagship_opens() -> None:
    assert hmcvi.load_run(ROOT / "results" / "flagship").model.latent_dim == 50


def test_bad_folders_say_what_they_are(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not the folder of a run"):
        hmcvi.load_run(tmp_path / "nowhere")
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "config.yaml").write_text((finished / "config.yaml").read_text() + "\nfuture: 1\n")
    with pytest.raises(ConfigError, match=r"unknown configuration key future.*another version"):
        hmcvi.load_run(copy)
    shutil.copy(finished / "config.yaml", copy)
    save({"model": [1, 2]}, copy / "chain.pt")
    with pytest.raises(CheckpointError, match="holds no model"):
        hmcvi.load_run(copy)
    (copy / "chain.pt").unlink()
    assert hmcvi.load_run(copy).stage == "vae"
    (copy / "vae.pt").unlink()
    with pytest.raises(CheckpointError, match="finish its training, hmcvi train --resume"):
        hmcvi.load_run(copy)
    (tmp_path / "row").mkdir()
    (tmp_path / "row.json").write_text(json.dumps({"figures": 1}))
    with pytest.raises(CheckpointError, match="is not the result of a run"):
        hmcvi.load_run(tmp_path / "row")


def test_weights_of_another_stage_are_not_taken_for_its_own(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    shutil.copy(copy / "vae.pt", copy / "chain.pt")
    with pytest.raises(CheckpointError, match=r"chain\.pt holds the weights of the stage 'vae'"):
        hmcvi.load_run(copy)


@pytest.mark.parametrize("edit", [{"nll": "text"}, {"nll_se": None}, {"refinement_gain": [1]}])
def test_a_checkpoint_whose_figures_cannot_be_reported_is_refused(
    finished: Path, tmp_path: Path, edit: dict[str, object]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    state = load(copy / "checkpoint.pt")
    save(
        {**state, "finished": [*state["finished"][:-1], {**state["finished"][-1], **edit}]},
        copy / "checkpoint.pt",
    )
    with pytest.raises(CheckpointError):
        Run.resume(copy)
