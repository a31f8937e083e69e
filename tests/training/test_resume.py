"""An interrupted run ends with the parameters of an uninterrupted one, bit for bit."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hmcvi.training import Interrupted, InterruptGuard, Run, evaluation, load_config
from hmcvi.training.checkpoint import load
from tests.training.conftest import PAPER, SMALL, run_in_process, start_train, train

SETTINGS = [
    *SMALL,
    "train.pretrain_epochs=10",
    "train.epochs=6",
    "chain.accept=nn",
    "chain.partial=true",
    "chain.mass=nn",
    "train.checkpoint_seconds=0.05",
    "train.optimizer=muon",
    "train.average=0.9",
    "train.output_lr=0.5",
    "train.deform=1",
    "model.slope=2",
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_in_process([*SETTINGS, f"runs={tmp_path_factory.mktemp('whole')}", "name=whole"])


def assert_same_weights(one: Path, other: Path) -> None:
    for stage in ("vae.pt", "chain.pt"):
        a, b = load(one / stage)["model"], load(other / stage)["model"]
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a), stage


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_kill_at_a_random_moment(tmp_path: Path, uninterrupted: Path, attempt: int) -> None:
    folder = tmp_path / "run"
    process = start_train("--config", str(PAPER), *SETTINGS, f"runs={tmp_path}", "name=run")
    while not (folder / "checkpoint.pt").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    # not seeded: every run of the suite tries other moments, and all must do
    time.sleep(random.SystemRandom().uniform(0, 2.5))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    code, _, err = train("--resume", str(folder))
    assert code == 0, err
    assert_same_weights(folder, uninterrupted)


@pytest.mark.slow
def test_ctrl_c_saves_and_exits_with_130(tmp_path: Path, uninterrupted: Path) -> None:
    folder = tmp_path / "run"
    process = start_train(
        "--config", str(PAPER), *SETTINGS, f"runs={tmp_path}", "name=run", "train.checkpoint_seconds=1000"
    )
    while not (folder / "checkpoint.pt").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    before = load(folder / "checkpoint.pt")["trainer"]
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert f"--resume {folder}" in out
    after = load(folder / "checkpoint.pt")["trainer"]
    assert (after["epoch"], after["batch"]) > (before["epoch"], before["batch"])
    code, _, err = train("--resume", str(folder))
    assert code == 0, err
    assert_same_weights(folder, uninterrupted)


@pytest.mark.slow
def test_a_finished_run_resumes_to_its_summary(uninterrupted: Path) -> None:
    before = load(uninterrupted / "chain.pt")["model"]
    code, out, err = train("--resume", str(uninterrupted))
    assert code == 0, err
    assert "refinement brought" in out
    after = load(uninterrupted / "chain.pt")["model"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_ctrl_c_during_evaluation_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [*SETTINGS, "chain.kind=none", "train.epochs=1", "evaluate.num_draws=2", f"runs={tmp_path}"]
    with InterruptGuard() as guard:
        whole = Run.create(load_config(overrides=[*settings, "name=whole"])).train(guard)

    real, batches = evaluation.score_batch, []

    def counting(*arguments: Any) -> torch.Tensor:
        batches.append(arguments)
        if len(batches) == 2:
            signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(evaluation, "score_batch", counting)
    with pytest.raises(Interrupted), InterruptGuard() as guard:
        Run.create(load_config(overrides=[*settings, "name=run"])).train(guard)
    with InterruptGuard() as guard:
        resumed = Run.resume(tmp_path / "run").train(guard)
    assert len(batches) == 3  # of a hundred test images each: none was computed twice
    timings = {"seconds", "cpu_seconds"}
    one, other = ({k: v for k, v in s["stages"][0].items() if k not in timings} for s in (whole, resumed))
    assert one == other


def test_out_of_time_stops_and_saves(tmp_path: Path) -> None:
    settings = [*SETTINGS, f"runs={tmp_path}", "name=run", "train.checkpoint_seconds=1000"]
    with pytest.raises(Interrupted) as stop, InterruptGuard(seconds=0) as guard:
        Run.create(load_config(overrides=settings)).train(guard)
    assert stop.value.exit_code == 0
    assert load(tmp_path / "run" / "checkpoint.pt")["trainer"]["batch"] == 1
