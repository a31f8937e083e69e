"""Table 1: its rows are the paper's, and the code that trains them on MNIST trains them on the digits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hmcvi.cli import main
from hmcvi.experiments.table1.rows import PUBLISHED, RESULTS, load_row, read_results, row_config, row_names
from hmcvi.training import InterruptGuard, load_config
from hmcvi.training.score import score

ON_DIGITS = [
    "data.name=digits",
    "model.hidden=[16]",
    "chain.hidden=[16]",
    "train.epochs=2",
    "train.batch_size=400",
    "train.compile=false",
    "evaluate.num_draws=2",
    "evaluate.nll_samples=20",
]
ROWS = ["basic-vi-2d", "hmcvi-08"]
SIZES = {  # row -> latents, HMC steps, leapfrog steps, partial, mass, acceptance; METHODS §2.9
    "hmcvi-01": (2, 1, 4, False, "global", None),
    "hmcvi-02": (2, 1, 12, False, "global", None),
    "hmcvi-03": (2, 2, 6, False, "global", None),
    "hmcvi-04": (2, 3, 4, False, "global", None),
    "hmcvi-05": (2, 3, 4, True, "global", None),
    "hmcvi-06": (2, 3, 4, False, "identity", None),
    "hmcvi-07": (2, 3, 4, False, "nn", None),
    "hmcvi-08": (2, 3, 4, True, "nn", None),
    "hmcvi-09": (2, 3, 4, False, "global", "simple"),
    "hmcvi-10": (2, 3, 4, False, "global", "nn"),
    "hmcvi-11": (20, 1, 12, False, "global", None),
    "hmcvi-12": (20, 2, 6, False, "global", None),
    "hmcvi-13": (20, 3, 4, False, "global", None),
    "hmcvi-14": (20, 3, 4, True, "global", None),
    "hmcvi-15": (20, 3, 4, False, "identity", None),
    "hmcvi-16": (20, 3, 4, False, "nn", None),
    "hmcvi-17": (20, 3, 4, True, "nn", None),
    "hmcvi-18": (20, 3, 4, False, "global", "simple"),
    "hmcvi-19": (20, 3, 4, False, "global", "nn"),
    "hmcvi-20": (20, 3, 4, False, "nn", "simple"),
}


def table1(*arguments: object) -> int:
    settings = [argument for setting in ON_DIGITS for argument in ("--set", setting)]
    return main(["table1", *map(str, arguments), *settings])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rows, interrupted once by the end of the time allowed."""
    out = tmp_path_factory.mktemp("table1")
    assert table1(*ROWS, "--out", out, "--budget", 0) == 0
    assert not read_results(out) and (out / ROWS[0] / "checkpoint.pt").exists()
    assert table1(*ROWS, "--out", out) == 0
    return out


@pytest.mark.parametrize("row", PUBLISHED)
def test_the_rows_are_those_of_the_paper(row: str, tmp_path: Path) -> None:
    config = row_config(row, tmp_path)
    assert config.model.hidden == [200, 200] and config.data.binarize == "dynamic"
    assert (config.evaluate.num_draws, config.evaluate.nll_samples) == (5, 5000)
    if row.startswith("basic"):
        assert config.chain.kind == "none" and config.train.init_from is None
        assert row == f"basic-vi-{config.model.latent_dim}d"
        return
    chain = config.chain
    assert chain.kind == "hmc" and chain.hidden == [200, 200]
    assert SIZES[row] == (
        config.model.latent_dim, chain.num_hmc, chain.num_leapfrog, chain.partial, chain.mass, chain.accept
    )  # fmt: skip


def test_rows_train_resume_and_report(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = read_results(trained)
    assert list(results) == ROWS
    for result in results.values():
        assert result["epochs"] == 2 and result["cpu_seconds"] > 0
        assert result["bound"] < 0 < result["nll"] and 1 <= result["nll_ess"] <= 20
        assert str(trained) not in json.dumps(result)
    assert results["hmcvi-08"]["config"]["train"]["init_from"] == "basic-vi-2d"
    assert main(["table1", "--report", str(trained)]) == 0
    table = capsys.readouterr().out
    assert f"| hmcvi-08 | 128.96 | {-results['hmcvi-08']['bound']:.2f} ± " in table
    assert (trained / "table1.png").exists()


def test_a_finished_row_is_not_trained_again(trained: Path) -> None:
    before = (trained / "hmcvi-08.json").read_text()
    assert table1("hmcvi-08", "--out", trained) == 0
    assert (trained / "hmcvi-08.json").read_text() == before


def test_pictures(trained: Path, tmp_path: Path) -> None:
    assert table1("hmcvi-08", "--out", trained, "--figures", tmp_path) == 0
    assert len(list(tmp_path.glob("table1-*.png"))) == 6


def test_weights_give_the_figures_of_their_result(trained: Path) -> None:
    _assert_reproduces("hmcvi-08", trained, ["evaluate.nll_samples=20"])


@pytest.mark.parametrize("arguments", [["hmcvi-21"], ["--report", "nowhere"], ["--figures", "x", "hmcvi-17"]])
def test_bad_input_exits_with_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table1(*arguments, "--out", tmp_path) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_every_committed_result_is_of_the_whole_test_set() -> None:
    for row, result in read_results(RESULTS).items():
        assert (result["num_images"], result["nll_samples"]) == (10_000, 5000), row
        assert result["config"]["evaluate"]["num_draws"] == 5
        assert result["num_failed"] == 0 and result["epochs"] == result["config"]["train"]["epochs"]


@pytest.mark.slow
@pytest.mark.skipif("HMCVI_DATA" not in os.environ, reason="needs the MNIST files: set HMCVI_DATA")
@pytest.mark.parametrize("row", [row for row in row_names() if (RESULTS / row / "vae.pt").exists()])
def test_committed_weights_give_the_figures_of_their_result(row: str) -> None:
    _assert_reproduces(row, RESULTS, ["evaluate.nll_samples=500", "data.download=false"])


def _assert_reproduces(row: str, folder: Path, overrides: list[str]) -> None:
    """Evaluate the stored weights again; the NLL may use fewer samples."""
    from hmcvi.data import load_images

    result = read_results(folder)[row]
    config = load_config(None, overrides)
    config.data.name = result["config"]["data"]["name"]
    config.evaluate.num_draws = result["config"]["evaluate"]["num_draws"]
    images = load_images(config.data.name, None, None, config.data.download)
    with InterruptGuard() as guard:
        again = score(load_row(row, folder), images.test, config, guard, folder / row / "again.pt")
    for quantity in ("bound", "nll"):
        assert abs(again[quantity] - result[quantity]) < 2 * result[f"{quantity}_se"]
