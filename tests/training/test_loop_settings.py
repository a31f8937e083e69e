"""Parts of batches, early ends and plateaus: what they change, and what they must not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hmcvi.training import ConfigError
from hmcvi.training.checkpoint import load
from hmcvi.training.gradients import split
from hmcvi.training.optimizers import learning_rate
from tests.training.conftest import PAPER, run_in_process, train


def weights(folder: Path, stage: str = "chain") -> dict[str, torch.Tensor]:
    return load(folder / f"{stage}.pt")["model"]


def test_parts_of_batches_train_the_same_model(small: list[str]) -> None:
    """The gradient is that of the whole batch, with the same random numbers: equal but for rounding."""
    whole = run_in_process([*small, "name=whole"])
    parts = run_in_process([*small, "name=parts", "train.accumulate=7"])
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], value, rtol=2e-3, atol=2e-4)


def test_parts_cover_a_batch() -> None:
    for number in (1, 3, 10):
        parts = split(5, 15, number)
        assert [i for start, stop in parts for i in range(start, stop)] == list(range(5, 15))
        assert max(b - a for a, b in parts) - min(b - a for a, b in parts) <= 1


def test_a_stage_ends_early_and_goes_on_when_there_is_more(small: list[str]) -> None:
    """With a learning rate that destroys the model nothing improves; all is kept of the best epoch."""
    early = [*small, "chain.kind=none", "train.epochs=50", "train.lr=1e-12", "train.patience=2"]
    folder = run_in_process([*early, "train.schedule=constant"])
    (stage,) = json.loads((folder / "summary.json").read_text())["stages"]
    assert stage["epochs"] < 50 and stage["epochs"] - stage["best_epoch"] == 2
    paper = ["--resume", str(folder)]
    assert train(*paper)[0] == 0  # nothing to do
    assert json.loads((folder / "summary.json").read_text())["stages"][0]["epochs"] == stage["epochs"]
    code, _, err = train(*paper, "train.epochs=60", "train.patience=4")
    assert code == 0, err
    assert json.loads((folder / "summary.json").read_text())["stages"][0]["epochs"] > stage["epochs"]


def test_a_plateau_lowers_the_rate(small: list[str]) -> None:
    settings = [*small, "chain.kind=none", "train.epochs=12", "train.lr=1e-12", "train.schedule=plateau"]
    folder = run_in_process([*settings, "train.plateau_epochs=3"])
    count, last = load(folder / "checkpoint.pt")["trainer"]["plateaus"]
    assert count >= 1 and last <= 12
    assert learning_rate(1.0, "plateau", 50, 100, 1, 2) == pytest.approx(1 / 9)


@pytest.mark.parametrize("setting", ["train.patience=3", "train.schedule=plateau"])
def test_without_validation_images_nothing_can_be_noticed(small: list[str], setting: str) -> None:
    with pytest.raises(ConfigError, match="need validation images"):
        run_in_process([*small, "data.validation=0", setting], PAPER)


def test_more_parts_than_images(small: list[str]) -> None:
    with pytest.raises(ConfigError, match="at most the 200 images"):
        run_in_process([*small, "train.accumulate=201"])
