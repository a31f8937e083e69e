"""seeds=0,1,2: the runs of each seed alone, and their spread."""

from __future__ import annotations

import json
import shlex
import statistics
from pathlib import Path

import pytest
import torch

import hmcvi.commands.train as script
from hmcvi.training import ConfigError, InterruptGuard
from hmcvi.training.checkpoint import load
from hmcvi.training.seeds import summarise_seeds, take_seeds
from tests.training.conftest import SMALL, run_in_process, train

FILES = ("vae.pt", "chain.pt")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    code, out, err = train(*SMALL, f"runs={folder}", "name=run", "seeds=0,3")
    assert code == 0, err
    assert "seeds 0, 3: mean ± standard deviation over seeds" in out
    return folder


def test_each_is_the_run_of_its_seed(two: Path, tmp_path: Path) -> None:
    alone = run_in_process([*SMALL, f"runs={tmp_path}", "name=alone", "seed=3"], script.DEFAULT_CONFIG)
    one, other = (load(folder / "chain.pt")["model"] for folder in (two / "run-seed3", alone))
    assert all(torch.equal(one[name], other[name]) for name in one)
    first = load(two / "run-seed0" / "chain.pt")["model"]
    assert not torch.equal(first["encoder.net.0.weight"], one["encoder.net.0.weight"])


def test_figures_over_seeds(two: Path) -> None:
    summaries = [json.loads((two / f"run-seed{s}" / "summary.json").read_text()) for s in (0, 3)]
    found = json.loads((two / "run-seeds.json").read_text())
    assert found["seeds"] == [0, 3]
    gains = [summary["stages"][-1]["refinement_gain"] for summary in summaries]
    figure = found["figures"]["refinement_gain"]
    assert figure["values"] == gains
    assert figure["mean"] == pytest.approx(sum(gains) / 2)
    assert figure["sd"] == pytest.approx(abs(gains[0] - gains[1]) / 2**0.5)
    bounds = [summary["stages"][0]["bound"] for summary in summaries]
    assert found["figures"]["vae bound"]["mean"] == pytest.approx(statistics.fmean(bounds))
    assert {"chain bound", "vae nll", "chain nll", "likelihood_gain", "bound_gain"} <= found["figures"].keys()
    assert summarise_seeds(summaries[:1])["figures"]["chain nll"]["sd"] is None


def test_the_same_command_goes_on(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished seeds are left alone, new ones join."""
    before = {path: path.read_bytes() for path in two.rglob("*.pt") if path.name in FILES}
    trained = []
    real = script.Run.fit
    monkeypatch.setattr(
        script.Run,
        "fit",
        lambda run, stage, *rest: trained.append(run.config.seed) or real(run, stage, *rest),
    )
    code, out, err = train(*SMALL, f"runs={two}", "name=run", "seeds=0,3,5")
    assert code == 0, err
    assert trained == [5, 5] and "seeds 0, 3, 5: " in out
    assert before == {path: path.read_bytes() for path in before}


def test_another_evaluation_scores_all_seeds_again(two: Path) -> None:
    code, _, err = train(*SMALL, f"runs={two}", "name=run", "seeds=0,3", "evaluate.nll_samples=0")
    assert code == 0, err
    figures = json.loads((two / "run-seeds.json").read_text())["figures"]
    assert "vae bound" in figures and "vae nll" not in figures and "likelihood_gain" not in figures


def test_other_settings_need_another_name(two: Path) -> None:
    code, _, err = train(*SMALL, f"runs={two}", "name=run", "seeds=0,3", "train.lr=0.5")
    assert code == 2 and "was trained with train.lr=" in err and "got 0.5" in err


def test_interrupted_seeds_say_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "InterruptGuard", lambda: InterruptGuard(seconds=0))
    code, out, _ = train(*SMALL, f"runs={tmp_path}", "seeds=1,2")
    assert code == 0  # out of time is no error
    command = out.splitlines()[-1].partition("hmcvi train ")[2]
    monkeypatch.undo()
    name = command.partition("name=")[2]
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}-seed1"]
    code, _, err = train(*shlex.split(command))
    assert code == 0, err
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}-seed1",
        f"{name}-seed2",
        f"{name}-seeds.json",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seeds=a,b"], "whole numbers, such as seeds=0,1,2, got 'a,b'"),
        (["seeds="], "whole numbers"),
        (["seeds=1,1"], "differ"),
        (["seeds=0,-1"], "below 2⁶⁴, got 0,-1"),
        (["seeds=1,2", "seed=3"], "both given"),
    ],
)
def test_bad_seeds(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        take_seeds(arguments)


def test_seeds_and_resume_exclude_each_other() -> None:
    code, _, err = train("--resume", "somewhere", "seeds=1")
    assert code == 2 and "by their name=" in err
