"""The report of Table 1, from made-up results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.__main__ import main
from experiments.table1 import questions, table
from experiments.table1.rows import BEYOND, CONFIGS, PUBLISHED, QUESTIONS, TARGETS, row_config, row_names
from hmcvi.internal.storage import save

NUM_IMAGES = 400
COST = {
    "question-reverse-flow": 1.08,
    "question-iwae": 4.34,
}  # CPU time of a step, that of hmcvi-17 being one


def result(bound: float = -89.0, nll: float | None = 86.0, **others: Any) -> dict[str, Any]:
    figures = {
        "bound": bound,
        "bound_se": 0.3,
        "nll": nll,
        "nll_se": 0.4,
        "nll_ess": 20.0,
        "nll_draws": 5,
        "nll_samples": 5000,
    }
    return {"name": "chain", **figures, "epochs": 40, "cpu_seconds": 1320.0, **others}


@pytest.mark.parametrize(
    ("row", "above", "expected"),
    [
        ("hmcvi-08", (0.3, 0.3), "met"),
        ("hmcvi-08", (0.31, 0.0), "missed: −bound +0.01"),
        ("hmcvi-17", (0.2, 0.2), "met"),
        ("hmcvi-17", (0.25, 1.0), "missed: −bound +0.05, NLL +0.80"),
        ("basic-vi-20d", (-1.0, None), "met by −bound"),
    ],
)
def test_targets(row: str, above: tuple[float, float | None], expected: str) -> None:
    paper = PUBLISHED[row]
    nll = None if above[1] is None else paper.nll + above[1]
    assert table.verdict(row, result(-(paper.bound + above[0]), nll)) == expected


def test_every_row_of_the_paper_has_a_target() -> None:
    assert list(TARGETS) == list(PUBLISHED)
    assert TARGETS["hmcvi-10"].nll == pytest.approx(127.47) and TARGETS["hmcvi-11"].nll == pytest.approx(
        87.97
    )


def test_a_question_changes_one_thing_for_the_same_time(tmp_path: Path) -> None:
    changed = {}
    for row, question in QUESTIONS.items():
        new, old = (asdict(row_config(name, tmp_path)) for name in (row, question.compared))
        assert new["train"]["epochs"] * COST.get(row, 1.0) == pytest.approx(old["train"]["epochs"], rel=0.03)
        changed[row] = {
            f"{section}.{key}"
            for section in ("data", "model", "chain", "objective", "train", "evaluate")
            for key in new[section]
            if new[section][key] != old[section][key]
        } - {"train.epochs"}
    assert changed == {
        "question-step-size": {"chain.step_size"},
        "question-acceptance-gradient": {"objective.acceptance_gradient"},
        "question-reverse-mixture": {"chain.reverse"},
        "question-reverse-flow": {"chain.reverse"},
        "question-iwae": {"objective.alpha", "objective.num_samples"},
    }


def test_rows_beyond_the_paper_have_as_many_forces_and_epochs(tmp_path: Path) -> None:
    for row, question in BEYOND.items():
        new, old = (row_config(name, tmp_path) for name in (row, question.compared))
        assert new.chain.num_hmc * new.chain.num_leapfrog == old.chain.num_hmc * old.chain.num_leapfrog
        assert new.model == old.model and new.train == old.train


def test_likelihoods_by_annealing_join_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hmcvi-17.json").write_text(json.dumps(result()))
    (tmp_path / "ais").mkdir()
    (tmp_path / "ais" / "hmcvi-17.json").write_text(json.dumps({"nll": 84.2, "nll_se": 0.3}))
    assert main(["table1", "--report", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["84.20 ± 0.30" in line for line in lines if "hmcvi-17" in line] == [True]


def test_every_file_is_a_row() -> None:
    found = {path.stem for path in CONFIGS.glob("*.yaml") if not path.stem.startswith("base")}
    assert found == set(row_names())


def write_scores(folder: Path, row: str, bound: torch.Tensor, settings: str = "alike") -> None:
    (folder / row).mkdir()
    save({"settings": settings, "bound": bound, "nll": -bound}, folder / row / "chain-scores.pt")


def test_gains_are_paired_image_by_image(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images, noise = 10 * torch.randn(NUM_IMAGES), 0.2 * torch.randn(NUM_IMAGES)
    write_scores(tmp_path, "hmcvi-17", images)
    write_scores(tmp_path, "question-iwae", images + 0.5 + noise)
    results = {"hmcvi-17": result(), "question-iwae": result(-88.5, 85.5)}
    for quantity in ("bound", "nll"):
        gain = questions.gain(results, tmp_path, "question-iwae", "hmcvi-17", quantity)
        assert gain is not None and not gain.pairing
        assert gain.mean == pytest.approx(0.5 + noise.mean().item(), abs=1e-5)
        assert gain.std_error == pytest.approx(noise.std().item() / NUM_IMAGES**0.5, rel=1e-3)


def test_gains_of_other_images_are_not_paired(tmp_path: Path) -> None:
    results = {"hmcvi-17": result(), "question-iwae": result(-88.5, 85.2)}
    expected = {"bound": (0.5, 0.3 * 2**0.5), "nll": (0.8, 0.4 * 2**0.5)}
    for _ in range(2):  # without scores, then with those of other images
        for quantity, (mean, error) in expected.items():
            gain = questions.gain(results, tmp_path, "question-iwae", "hmcvi-17", quantity)
            assert gain is not None and gain.pairing == "unpaired"
            assert gain[:2] == pytest.approx((mean, error))
        for row, settings in (("hmcvi-17", "10 images, seed 2"), ("question-iwae", "20 images, seed 2")):
            if not (tmp_path / row).exists():
                write_scores(tmp_path, row, torch.randn(NUM_IMAGES), settings)


def test_gains_of_other_binarisations_are_paired_by_image(tmp_path: Path) -> None:
    """Their noise adds to that of the differences, the spread of the images still cancels."""
    torch.manual_seed(0)
    images = 10 * torch.randn(NUM_IMAGES)
    noise, other = torch.randn(2, NUM_IMAGES)
    write_scores(tmp_path, "hmcvi-17", images + noise, "10 images, seed 2")
    write_scores(tmp_path, "question-iwae", images + 0.5 + other, "10 images, seed 2 split")
    results = {"hmcvi-17": result(), "question-iwae": result(-88.5, 85.5)}
    gain = questions.gain(results, tmp_path, "question-iwae", "hmcvi-17", "bound")
    assert gain is not None and gain.pairing == "paired by image" and str(gain).endswith("(paired by image)")
    assert gain.mean == pytest.approx(0.5 + (other - noise).mean().item(), abs=1e-5)
    assert gain.std_error == pytest.approx((other - noise).std().item() / NUM_IMAGES**0.5, rel=1e-3)


def test_bounds_pair_however_the_likelihood_was_estimated(tmp_path: Path) -> None:
    settings = "10 images of mnist, dynamic 5, bound of 1, NLL of {} for all, seed 2"
    write_scores(tmp_path, "hmcvi-17", torch.zeros(NUM_IMAGES), settings.format(5000))
    write_scores(tmp_path, "informed-20d", torch.ones(NUM_IMAGES), settings.format(0))
    results = {"hmcvi-17": result(), "informed-20d": result()}
    gains = [questions.gain(results, tmp_path, "informed-20d", "hmcvi-17", q) for q in ("bound", "nll")]
    assert [gain.pairing for gain in gains if gain is not None] == ["", "unpaired"]


def test_gains_of_likelihoods_are_paired_image_by_image(tmp_path: Path) -> None:
    (tmp_path / "ais").mkdir()
    nll = torch.randn(NUM_IMAGES)
    for row, gained, how in (("hmcvi-08", 0.0, "exact"), ("a", 0.5, "exact"), ("b", 0.5, "annealed")):
        save({"settings": how, "nll": nll - gained}, tmp_path / "ais" / f"{row}.pt")
    gain = questions.likelihood_gain(tmp_path, "a", "hmcvi-08")
    assert gain is not None and gain.mean == pytest.approx(0.5, abs=1e-6) and gain.std_error < 1e-6
    assert questions.likelihood_gain(tmp_path, "b", "hmcvi-08") is None
    assert questions.likelihood_gain(tmp_path, "c", "hmcvi-08") is None


def test_the_questions_stand_beside_what_they_are_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in ("hmcvi-17", "question-step-size", "question-acceptance-gradient"):
        (tmp_path / f"{row}.json").write_text(json.dumps(result(nll=None, cpu_seconds=None)))
    assert main(["table1", "--report", str(tmp_path)]) == 0
    paper, ours = capsys.readouterr().out.strip().split("\n\n")
    assert len(paper.splitlines()) == 2 + len(PUBLISHED) and "question" not in paper
    rows = [line.split(" | ")[0].removeprefix("| ") for line in ours.splitlines()[2:]]
    assert rows == ["hmcvi-17", "question-step-size", "question-acceptance-gradient"]
    assert ours.splitlines()[3].endswith("| 89.00 ± 0.30 | +0.00 ± 0.42 (unpaired) | – |  | – |  | 40 | – |")
    assert (tmp_path / "table1.png").stat().st_size > 10_000
