"""The report credits the chain with what the chain does, and pairs what can be paired."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hmcvi.training import InterruptGuard, Run, load_config, report
from hmcvi.training.checkpoint import load
from hmcvi.training.comparison import compare_stages, paired
from tests.training.conftest import CHAIN, SMALL, run_in_process, train

DRAWS = 3


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose stages are evaluated with several draws."""
    folder = tmp_path_factory.mktemp("scored")
    return run_in_process([*SMALL, *CHAIN, f"evaluate.num_draws={DRAWS}", f"runs={folder}", "name=run"])


def summary_of(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text())


def resume(folder: Path, *overrides: str) -> Any:
    with InterruptGuard() as guard:
        return Run.resume(folder, overrides).train(guard)


def test_refinement_is_the_same_model_with_and_without_its_chain(scored: Path) -> None:
    """Against an evaluation of a plain VAE that has the final encoder and decoder."""
    last = summary_of(scored)["stages"][-1]
    plain = run_in_process(
        [*SMALL, f"evaluate.num_draws={DRAWS}", f"runs={scored.parent}", "name=plain", "chain.kind=none",
         "train.epochs=0", f"train.init_from={scored / 'chain.pt'}"]
    )  # fmt: skip
    alone = summary_of(plain)["stages"][0]
    assert last["bound_without_chain"] == pytest.approx(alone["bound"], abs=1e-4)
    assert last["bound_without_chain_se"] == pytest.approx(alone["bound_se"], rel=1e-3)
    assert last["refinement_gain"] == pytest.approx(last["bound"] - alone["bound"], abs=1e-4)
    scores, without = load(scored / "chain-scores.pt"), load(plain / "vae-scores.pt")
    torch.testing.assert_close(scores["bound_without_chain"], without["bound"])
    differences = (scores["bound"] - without["bound"]).double()
    expected = differences.std() / len(differences) ** 0.5
    assert last["refinement_gain_se"] == pytest.approx(expected.item(), rel=1e-3)
    assert "refinement_gain" not in summary_of(scored)["stages"][0]


def test_an_untrained_chain_is_not_credited_with_the_decoder(tmp_path: Path) -> None:
    """The plain VAE has hardly begun when the chain joins: the bound soars, and not by refinement."""
    settings = ["train.pretrain_epochs=1", "train.epochs=8", "train.lr=0.01", "chain.initial_step_size=1e-6"]
    folder = run_in_process([*SMALL, *settings, f"runs={tmp_path}", "name=run", "train.schedule=constant"])
    summary = summary_of(folder)
    before, after = summary["stages"]
    assert after["bound"] - before["bound"] > 5
    assert abs(after["refinement_gain"]) < 1
    assert summary["between_stages"]["likelihood_gain"] > 5
    text = report(summary)
    assert f"refinement brought {after['refinement_gain']:+.2f} ± " in text
    assert f"further brought {before['nll'] - after['nll']:+.2f} ± " in text


def test_gains_between_stages_are_paired(scored: Path) -> None:
    gains, stages = summary_of(scored)["between_stages"], summary_of(scored)["stages"]
    assert (gains["from"], gains["to"]) == ("vae", "chain")
    assert gains["bound_gain"] == pytest.approx(stages[1]["bound"] - stages[0]["bound"], abs=1e-4)
    assert gains["likelihood_gain"] == pytest.approx(stages[0]["nll"] - stages[1]["nll"], abs=1e-4)
    unpaired = (stages[0]["nll_se"] ** 2 + stages[1]["nll_se"] ** 2) ** 0.5
    assert 0 < gains["likelihood_gain_se"] < unpaired / 2


def test_the_paired_error_is_that_of_the_differences() -> None:
    torch.manual_seed(1)
    images, noise = 100 * torch.randn(400), torch.randn(400)
    noise = (noise - noise.mean()) / noise.std()
    gains = paired({"bound": images, "nll": -images}, {"bound": images + 0.5 + noise, "nll": -images - 2.0})
    assert gains["bound_gain"] == pytest.approx(0.5, abs=1e-5)
    assert gains["bound_gain_se"] == pytest.approx(1 / 20, rel=1e-4)
    assert gains["likelihood_gain"] == pytest.approx(2.0, abs=1e-5)
    assert gains["likelihood_gain_se"] == pytest.approx(0, abs=1e-6)


def test_unlike_scores_are_not_compared(scored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(scored, tmp_path / "run")
    scores = load(folder / "vae-scores.pt")
    torch.save({**scores, "settings": "of other images"}, folder / "vae-scores.pt")
    assert compare_stages(folder, "vae", "chain") is None
    assert compare_stages(tmp_path, "vae", "chain") is None


def test_a_frozen_decoder_is_not_trained_further(tmp_path: Path) -> None:
    code, out, err = train(*SMALL, "train.freeze=[decoder]", f"runs={tmp_path}", "name=run")
    assert code == 0, err
    assert "the decoder was frozen" in out and "further brought" not in out


def test_other_settings_evaluate_both_stages_again(scored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(scored, tmp_path / "run")
    old = summary_of(folder)
    new = resume(folder, "evaluate.num_draws=2", "evaluate.max_images=150", "evaluate.nll_samples=30")
    fresh = run_in_process(
        [*SMALL, *CHAIN, "evaluate.num_draws=2", "evaluate.max_images=150", "evaluate.nll_samples=30",
         f"runs={tmp_path}", "name=fresh"]
    )  # fmt: skip
    timings = {"seconds", "cpu_seconds"}
    for again, expected, before in zip(
        new["stages"], summary_of(fresh)["stages"], old["stages"], strict=True
    ):
        assert {k: v for k, v in again.items() if k not in timings} == {
            k: v for k, v in expected.items() if k not in timings
        }
        assert again["seconds"] == before["seconds"] and again["bound"] != before["bound"]
    assert new["between_stages"] == summary_of(fresh)["between_stages"]
    assert summary_of(folder)["stages"] == new["stages"]


def test_a_finished_run_is_not_evaluated_again(
    scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(scored, tmp_path / "run")
    monkeypatch.setattr("hmcvi.training.run.evaluate", None)  # nobody may call it
    assert resume(folder)["stages"] == summary_of(scored)["stages"]


def test_a_new_evaluation_needs_the_weights(scored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(scored, tmp_path / "run")
    (folder / "vae.pt").unlink()
    code, _, err = train("--resume", str(folder), "evaluate.num_draws=1")
    assert code == 2 and "vae.pt is missing" in err


def test_a_longer_training_goes_on_from_the_last_stage(scored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(scored, tmp_path / "run")
    old, new = summary_of(scored)["stages"], resume(folder, "train.epochs=3")["stages"]
    assert [stage["epochs"] for stage in new] == [2, 3]
    assert new[0] == old[0] and new[1]["bound"] != old[1]["bound"]


@pytest.mark.parametrize("setting", ["chain.num_leapfrog=3", "train.lr=0.5", "train.epochs=1"])
def test_settings_that_come_too_late_are_refused(scored: Path, tmp_path: Path, setting: str) -> None:
    """The figures of a finished run are not those of other settings."""
    folder = shutil.copytree(scored, tmp_path / "run")
    code, _, err = train("--resume", str(folder), setting)
    assert code == 2 and "is finished" in err and setting in err
    assert resume(folder)["config"] == summary_of(scored)["config"]


def test_refused_settings_do_not_replace_those_of_the_run(scored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(scored, tmp_path / "run")
    code, _, err = train("--resume", str(folder), "model.latent_dim=7")
    assert code == 2 and "another architecture" in err
    assert load_config(folder / "config.yaml").model.latent_dim == 2


@pytest.mark.parametrize("binarize", ["threshold", "none"])
def test_draws_of_images_that_are_not_binarised_repeat_the_chain(binarize: str, tmp_path: Path) -> None:
    """So that the error of a repetition is known: it falls as 1/√draws."""
    errors = {}
    for draws in (2, 32):
        folder = run_in_process(
            [*SMALL, f"data.binarize={binarize}", f"evaluate.num_draws={draws}", f"runs={tmp_path}",
             f"name={draws}", "evaluate.nll_draws=1"]
        )  # fmt: skip
        last = summary_of(folder)["stages"][-1]
        errors[draws] = last["bound_repeat_se"]
        assert last["refinement_gain_repeat_se"] > 0
    assert errors[2] / errors[32] == pytest.approx(4, rel=0.4)
