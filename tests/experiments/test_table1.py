"""Table 1: its rows are the paper's, and the code that trains them on MNIST trains them on the digits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch.distributions import Independent, Normal

from experiments.__main__ import main
from experiments.table1.repetition import LIMIT, repeat_row
from experiments.table1.rows import PUBLISHED, RESULTS, read_results, row_config
from experiments.table1.weights import has_weights, load_row, stored_config
from hmcvi.data import load_images
from hmcvi.evidence import importance
from hmcvi.internal.storage import load, save
from hmcvi.training import ConfigError, InterruptGuard
from hmcvi.training.evaluation import TEST_SEED, evaluate, prepare, seed_batch
from tests.support.statistics import Z

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


@pytest.mark.slow
def test_pictures(trained: Path, tmp_path: Path) -> None:
    assert table1("hmcvi-08", "--out", trained, "--figures", tmp_path) == 0
    assert len(list(tmp_path.glob("table1-*.png"))) == 6


def test_weights_alone_are_evaluated_not_trained(trained: Path, tmp_path: Path) -> None:
    weights = tmp_path / "hmcvi-08" / "chain.pt"
    weights.parent.mkdir()
    weights.write_bytes((trained / "hmcvi-08" / "chain.pt").read_bytes())
    assert table1("hmcvi-08", "--out", tmp_path) == 0
    before, after = (read_results(folder)["hmcvi-08"] for folder in (trained, tmp_path))
    assert {**before, "config": None} == pytest.approx({**after, "config": None})
    assert before["config"]["chain"] == after["config"]["chain"]
    scores = [load(folder / "hmcvi-08" / "chain-scores.pt") for folder in (trained, tmp_path)]
    assert scores[0].pop("settings") == scores[1].pop("settings")
    torch.testing.assert_close(*scores)
    assert not (tmp_path / "hmcvi-08" / "checkpoint.pt").exists()


def test_two_latents_are_integrated(trained: Path) -> None:
    """The likelihood lies above the bound, and importance sampling from the prior agrees with it."""
    row, images = "hmcvi-08", 5
    assert table1(row, "--ais", "--out", trained, "--set", f"evaluate.max_images={images}") == 0
    found = read_results(trained)[row]["ais"]
    scores = load(trained / "ais" / f"{row}.pt")
    assert found["method"] == "grid" and found["num_images"] == images == len(scores["nll"])
    assert found["nll"] < -found["bound"]
    seed_batch(TEST_SEED, 0)
    x = prepare(load_images("digits", validation=0).test[:images], "dynamic")
    prior = Independent(Normal(torch.zeros(images, 2), 1.0), 1)
    sampled = importance(prior, load_row(row, trained).posterior(x), 20_000).per_item
    assert ((sampled.log_z + scores["nll"]).abs() < Z * sampled.std_error).all()
    assert sampled.std_error.max() < 0.1


def test_a_weight_file_holds_the_parameters_once(trained: Path) -> None:
    path = trained / "hmcvi-08" / "chain.pt"
    parameters = sum(4 * p.numel() for p in load_row("hmcvi-08", trained).parameters())
    names = len(load(path)["model"])
    assert path.stat().st_size < parameters + 400 * names


def test_weights_of_half_the_size_give_the_same_bound(trained: Path, tmp_path: Path) -> None:
    row = "hmcvi-08"
    stored, result = tmp_path / row / "chain.pt", tmp_path / f"{row}.json"
    stored.parent.mkdir()
    for path in (stored, result):
        path.write_bytes((trained / path.relative_to(tmp_path)).read_bytes())
    assert main(["table1", row, "--halve", "--out", str(tmp_path)]) == 0
    before, after = (load(folder / row / "chain.pt")["model"] for folder in (trained, tmp_path))
    assert all(after[name].dtype == (torch.half if v.dim() > 1 else v.dtype) for name, v in before.items())
    assert stored.stat().st_size < 0.6 * (trained / row / "chain.pt").stat().st_size
    result.unlink()
    assert table1(row, "--out", tmp_path) == 0
    before, after = (load(folder / row / "chain-scores.pt") for folder in (trained, tmp_path))
    change = after["bound"] - before["bound"]
    assert 0 < change.abs().mean() < 0.1 and change.mean().abs() < 0.01


def test_evaluated_again(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With other binarisations and other samples, without touching what was recorded."""
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    code = table1("hmcvi-08", "--out", trained, "--evaluate", 7)
    with InterruptGuard() as guard:
        figures = repeat_row("hmcvi-08", trained, 7, guard)
    assert code == int(any(figure.deviation > LIMIT for figure in figures))
    assert [figure.quantity for figure in figures] == ["bound", "nll"]
    result, out = read_results(trained)["hmcvi-08"], capsys.readouterr().out
    for figure in figures:
        assert figure.recorded == result[figure.quantity] != figure.repeated
        assert figure.deviation < Z
        assert f"| {figure.recorded:.3f} | {figure.repeated:.3f} ± " in out
    assert before == {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}


def test_fewer_draws_for_the_nll_leave_the_bound_alone(trained: Path, tmp_path: Path) -> None:
    model, test = load_row("basic-vi-2d", trained), load_images("digits").test
    with InterruptGuard() as guard:
        few, all_ = (
            evaluate(model, test, stored_config("basic-vi-2d", trained, some), guard, tmp_path / "x.pt")
            for some in (["evaluate.nll_draws=1"], [])
        )
    assert few.summary["bound"] == all_.summary["bound"]
    assert (few.summary["nll_draws"], all_.summary["nll_draws"]) == (1, 2)
    assert few.settings != all_.settings
    difference = few.per_image["nll"] - all_.per_image["nll"]
    assert abs(difference.mean()) < Z * difference.std() / len(difference) ** 0.5


def test_changed_weights_are_noticed(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "hmcvi-08").mkdir()
    (tmp_path / "hmcvi-08.json").write_bytes((trained / "hmcvi-08.json").read_bytes())
    weights = load(trained / "hmcvi-08" / "chain.pt")
    weights["model"]["decoder.2.bias"] += 0.3
    save(weights, tmp_path / "hmcvi-08" / "chain.pt")
    assert table1("hmcvi-08", "--out", tmp_path, "--evaluate", 7, "--set", "evaluate.nll_samples=0") == 1


def test_the_error_of_a_repetition_is_calibrated(trained: Path, tmp_path: Path) -> None:
    """Σ (x_s − x̄)² / se² over S evaluations of the same images is χ² with S − 1 degrees of freedom."""
    overrides = ["evaluate.max_images=20", "evaluate.num_draws=6", "evaluate.nll_samples=10"]
    model, config = load_row("basic-vi-2d", trained), stored_config("basic-vi-2d", trained, overrides)
    test = load_images(config.data.name).test
    with InterruptGuard() as guard:
        runs = [
            evaluate(model, test, config, guard, tmp_path / "x.pt", seed=s).summary for s in range(10, 110)
        ]
    for name in ("bound", "nll"):
        values, errors = (torch.tensor([run[key] for run in runs]) for key in (name, f"{name}_repeat_se"))
        chi_squared = ((values - values.mean()).square() / errors.square().mean()).sum().item()
        free = len(runs) - 1
        assert abs(chi_squared - free) < Z * (2 * free) ** 0.5, name


@pytest.mark.parametrize(
    "arguments",
    [
        ["hmcvi-21"],
        ["--report", "nowhere"],
        ["--figures", "x", "hmcvi-17"],
        ["--evaluate", "3", "hmcvi-17"],
        ["--evaluate", "3", "hmcvi-21"],
    ],
)
def test_bad_input_exits_with_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table1(*arguments, "--out", tmp_path) == 2
    assert capsys.readouterr().err.startswith("error: ")


SETTINGS = ["num_draws=3", "max_images=5", "nll_samples=10", "bound_samples=2", "nll_draws=1"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_other_settings_are_not_compared(setting: str, trained: Path) -> None:
    with InterruptGuard() as guard, pytest.raises(ConfigError, match=setting.partition("=")[0]):
        repeat_row("hmcvi-08", trained, 7, guard, [f"evaluate.{setting}"])


def test_every_committed_result_is_of_the_whole_test_set() -> None:
    for row, result in read_results(RESULTS).items():
        assert result["num_images"] == 10_000, row
        assert result["nll"] is None or result["nll_samples"] == 5000, row
        assert result["config"]["evaluate"]["num_draws"] == 5
        assert result["num_failed"] == 0 and result["epochs"] in (None, result["config"]["train"]["epochs"])


@pytest.mark.slow
@pytest.mark.skipif("HMCVI_DATA" not in os.environ, reason="needs the MNIST files: set HMCVI_DATA")
@pytest.mark.parametrize("row", [row for row in read_results(RESULTS) if has_weights(row, RESULTS)])
def test_committed_weights_give_the_bound_of_their_result(row: str) -> None:
    with InterruptGuard() as guard:
        (bound,) = repeat_row(row, RESULTS, 7, guard, ["evaluate.nll_samples=0", "data.download=false"])
    assert bound.deviation < Z
