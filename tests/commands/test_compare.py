"""`hmcvi compare`: paired differences of runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hmcvi.commands import main
from hmcvi.training.checkpoint import load, save
from hmcvi.training.compare_runs import compare_runs, comparison_table
from tests.support.training_runs import train

FEW = ["train.pretrain_epochs=1", "train.epochs=1", "chain.num_hmc=1", "chain.hidden=[8]"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    train(folder, "a", "hmcvi.yaml", FEW)
    train(folder, "b", "hmcvi.yaml", [*FEW, "train.lr=0.01"])
    return folder / "a", folder / "b"


def test_gains_are_means_of_differences(two: tuple[Path, Path]) -> None:
    first, second = compare_runs(two)
    old, new = (load(folder / "chain-scores.pt")["bound"].double() for folder in two)
    assert not first.gains
    assert second.gains["bound_gain"] == pytest.approx((new - old).mean().item())
    assert second.gains["bound_gain_se"] == pytest.approx((new - old).std().item() / len(old) ** 0.5)
    assert second.differs == {"train.lr": 0.01} and first.differs == {"train.lr": 0.002}


def test_the_table_and_its_picture(
    two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "compare.svg"
    assert main(["compare", *map(str, two), "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert "gain over a, paired" in out and "train.lr=0.01" in out
    assert plot.read_text().startswith("<?xml")


def test_scores_of_another_evaluation_are_not_paired(two: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "b"
    shutil.copytree(two[1], other)
    scores = load(other / "chain-scores.pt")
    save({**scores, "settings": "other"}, other / "chain-scores.pt")
    runs = compare_runs([two[0], other])
    assert not runs[1].gains and "not paired" in comparison_table(runs)


def test_what_cannot_be_compared(
    two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grey = tmp_path / "grey"
    shutil.copytree(two[1], grey)
    config = (grey / "config.yaml").read_text().replace("binarize: dynamic", "binarize: threshold")
    (grey / "config.yaml").write_text(config)
    empty = tmp_path / "empty"
    shutil.copytree(two[1], empty)
    (empty / "summary.json").unlink()
    for runs, message in (
        ([two[0]], "two runs or more"),
        ([two[0], two[0]], "given twice"),
        ([two[0], grey], "data.binarize is dynamic in one, threshold in the other"),
        ([two[0], tmp_path / "nowhere"], "is not the folder of a run"),
        ([two[0], empty], "has no results yet"),
    ):
        assert main(["compare", *map(str, runs)]) == 2
        err = capsys.readouterr().err
        assert message in err and len(err.splitlines()) == 1
    assert main(["compare", *map(str, two), "--plot", str(tmp_path / "a.xyz")]) == 2
    assert "a.xyz" in capsys.readouterr().err
