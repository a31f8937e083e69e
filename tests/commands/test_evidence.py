"""`hmcvi evidence`: on runs, on published weights, stopped and continued."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hmcvi
from hmcvi.chain import Chain
from hmcvi.commands import evidence_batches, main
from hmcvi.evidence.methods import METHODS, SHORT_NAMES
from hmcvi.internal.storage import load, load_json, save
from hmcvi.training.build import build_model
from hmcvi.training.config import Config, to_yaml
from tests.support.iwae_weights import write_weights

SMALL = ["--images", "6", "--batch", "3", "--temperatures", "5", "--chains", "4", "--samples", "20"]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """What training leaves behind, without the training."""
    torch.manual_seed(0)
    config = Config()
    model = build_model(config, 64, Chain())
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    save({"model": model.state_dict(), "stage": "vae"}, tmp_path / "vae.pt")
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.evidence.EvidenceWarning")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_writes_its_result(method: str, run_folder: Path) -> None:
    assert main(["evidence", str(run_folder), "--method", method, *SMALL, "--batch", "6"]) == 0
    result = json.loads((run_folder / f"evidence-{method}.json").read_text())
    assert result["num_images"] == 6 and -100 < result["log_likelihood"] < -10
    assert result["method"] == method and ("gap" in result) == (method == "bidirectional")
    assert list(run_folder.glob("events.out.tfevents.*"))


@pytest.mark.filterwarnings("ignore::hmcvi.evidence.EvidenceWarning")
def test_short_names_of_the_first_release_are_known(run_folder: Path) -> None:
    assert SHORT_NAMES.keys() == {"bdmc", "ct-hmc", "gibbs-ct", "is", "st"}
    assert METHODS.keys() >= set(SHORT_NAMES.values())
    assert main(["evidence", str(run_folder), "--method", "is", *SMALL]) == 0
    assert json.loads((run_folder / "evidence-importance.json").read_text())["method"] == "importance"


@pytest.mark.filterwarnings("ignore::hmcvi.evidence.EvidenceWarning")
def test_a_stopped_run_goes_on_to_the_same_result(
    run_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = (tmp_path_factory.mktemp(name) for name in ("whole", "parts"))
    command = ["evidence", str(run_folder), *SMALL]
    assert main([*command, "--out", str(whole)]) == 0
    original, calls = evidence_batches.estimate, []

    def stops_after_one(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(evidence_batches, "estimate", stops_after_one)
    assert main([*command, "--out", str(parts)]) == 130
    assert main([*command, "--out", str(parts)]) == 0
    assert len(calls) == 3  # the first batch was not computed again
    results = [load_json(folder / "evidence-ais.json") for folder in (whole, parts)]
    for result in results:
        del result["seconds"], result["cpu_seconds"]
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.evidence.EvidenceWarning")
def test_many_processes_find_what_one_does(
    run_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two processes under torchrun go on after the first of four batches, and share the other three."""
    alone, many = (tmp_path_factory.mktemp(name) for name in ("alone", "many"))
    method = ["--method", "importance", "--batch", "2", "--images", "7"]
    command = ["evidence", str(run_folder), *SMALL, *method]
    assert main([*command, "--out", str(alone)]) == 0
    state = load(alone / "evidence-importance.pt")
    save(state | {"batches": state["batches"][:1]}, many / "evidence-importance.pt")
    launched = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "hmcvi", *command, "--out", str(many)),
        ],
        capture_output=True,
        text=True,
        cwd=Path(hmcvi.__file__).parents[1],
    )
    assert launched.returncode == 0, launched.stderr[-2000:]
    assert launched.stdout.count("log p(x) per image") == 1  # the first process speaks for all
    assert len(list(many.glob("events.out.tfevents.*"))) == 1
    results = [load_json(folder / "evidence-importance.json") for folder in (alone, many)]
    for result in results:
        del result["seconds"], result["cpu_seconds"]
    assert results[0] == results[1]


@pytest.mark.filterwarnings("ignore::hmcvi.evidence.EvidenceWarning")
def test_published_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_weights(tmp_path)
    assert main(["evidence", str(tmp_path), *SMALL]) == 2
    assert "--dataset" in capsys.readouterr().err
    assert main(["evidence", str(tmp_path), "--simulated", "--out", str(tmp_path / "out"), *SMALL]) == 0
    assert (tmp_path / "out" / "evidence-ais.json").exists()


def test_mistakes_are_explained(tmp_path: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", str(tmp_path / "nowhere")]) == 2
    assert "not the folder of a run" in capsys.readouterr().err
    (run_folder / "vae.pt").rename(tmp_path / "elsewhere.pt")
    assert main(["evidence", str(run_folder)]) == 2
    assert "holds no weights" in capsys.readouterr().err
    (tmp_path / "elsewhere.pt").rename(run_folder / "vae.pt")
    assert main(["evidence", str(run_folder), "--chains", "0"]) == 2
    assert "--chains must be at least 1, got 0" in capsys.readouterr().err
    assert main(["evidence", str(run_folder), "--images", "100000"]) == 2
    assert "test images" in capsys.readouterr().err
    assert main(["evidence", str(run_folder), "--method", "tempered-hmc"]) == 2
    assert "did you mean tempered_hmc?" in capsys.readouterr().err
