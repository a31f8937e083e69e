"""`python train.py` from the outside: what it writes, and what it says to bad input."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch

from hmcvi.training import CheckpointError, ConfigError, InterruptGuard, Run, load_config
from hmcvi.training.checkpoint import load, save
from tests.training.conftest import ROOT, run_in_process, train


def test_summary_and_weights(small: list[str], tmp_path: Path) -> None:
    code, out, err = train(*small)
    assert code == 0, err
    assert "refinement brought" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [stage["name"] for stage in summary["stages"]] == ["vae", "chain"]
    for stage in summary["stages"]:
        assert stage["bound"] < 0 < stage["nll"] and stage["bound_se"] > 0 and stage["nll_se"] > 0
        assert stage["nll_sampling_se"] > 0 and 1 <= stage["nll_ess"] <= stage["nll_samples"] == 20
        assert stage["epochs"] == 2 and stage["seconds"] > 0
    assert summary["seed"] == 0
    assert summary["config"]["chain"]["num_hmc"] == 2
    assert (tmp_path / "run" / "vae.pt").exists() and (tmp_path / "run" / "chain.pt").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.epoch=3"], "did you mean train.epochs?"),
        (["chain.num_leapfrog=0"], "got 0"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--resume", "nowhere"], "nowhere"),
        (["data.name=mnsit"], "mnist"),
        (["data.name=mnist", "data.root=nowhere", "data.download=false"], "nowhere"),
        (["data.validation=5000"], "5000"),
        (["train.init_from=nowhere"], "nowhere"),
        (["train.device=cuda:7"], "cuda:7"),
        ([f"runs={__file__}"], "test_train.py"),
    ],
)
def test_bad_input_exits_with_2_and_one_line(small: list[str], arguments: list[str], message: str) -> None:
    overrides = [] if "--resume" in arguments else small
    code, _, err = train(*overrides, *arguments)
    assert code == 2
    assert err.startswith("error: ") and message in err
    assert "Traceback" not in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_trains(path: Path, small: list[str]) -> None:
    offline = ["data.name=digits", "evaluate.bound_samples=1", "objective.num_samples=2"]
    folder = run_in_process([*small, *offline], path)
    summary = json.loads((folder / "summary.json").read_text())
    assert all(math.isfinite(stage["bound"]) for stage in summary["stages"])
    assert all(value.isfinite().all() for value in _weights(folder).values())


@pytest.mark.parametrize(
    ("reverse", "kind", "memory"),
    [
        ("mixture", "hmc", "store"),
        ("flow", "hmc", "reversible"),
        ("mixture", "hvi", "checkpoint"),
        ("flow", "flow-hmc", "checkpoint"),
    ],
)
def test_reverse_models_train(small: list[str], reverse: str, kind: str, memory: str) -> None:
    folder = run_in_process(
        [*small, f"chain.reverse={reverse}", f"chain.kind={kind}", f"chain.memory={memory}"]
    )
    weights = _weights(folder)
    assert all(value.isfinite().all() for value in weights.values())
    outputs = {w.shape[0] for name, w in weights.items() if name.endswith("reverse.net.body.1.weight")}
    assert outputs == {{"mixture": 5 * 5, "flow": 4 + 16}[reverse]}


def test_the_seed_decides(small: list[str], tmp_path: Path) -> None:
    runs = [
        run_in_process([*small, f"name={name}", f"seed={seed}"])
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    a, b, c = (_weights(run) for run in runs)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)


def test_start_from_another_run(small: list[str], tmp_path: Path) -> None:
    first = run_in_process([*small, "name=first", "chain.kind=none"])
    second = run_in_process([*small, "name=second", f"train.init_from={first}", "train.epochs=0"])
    old, new = load(first / "vae.pt")["model"], _weights(second)
    assert all(torch.equal(new[name], old[name]) for name in old)
    with pytest.raises(CheckpointError, match="another architecture"):
        run_in_process([*small, "name=third", f"train.init_from={first}", "model.latent_dim=5"])


def test_resuming_with_another_architecture_is_refused(small: list[str]) -> None:
    folder = run_in_process([*small, "chain.kind=none"])
    state = load(folder / "checkpoint.pt")
    save({**state, "finished": []}, folder / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="another architecture"), InterruptGuard() as guard:
        Run.resume(folder, ["model.latent_dim=7"]).train(guard)


def test_an_existing_run_is_not_overwritten(small: list[str]) -> None:
    run_in_process([*small, "chain.kind=none"])
    with pytest.raises(ConfigError, match="--resume"):
        Run.create(load_config(overrides=small))


def test_damaged_images_are_masked_and_parameters_stay_finite(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hmcvi.training import loop

    clean = loop.prepare

    def damaged(x: torch.Tensor, how: str) -> torch.Tensor:
        x = clean(x, how)
        x[::10, 0], x[5::10, 3] = math.nan, math.inf
        return x

    monkeypatch.setattr(loop, "prepare", damaged)
    masked = []
    monkeypatch.setattr(
        loop.Board, "training", lambda self, epoch, sums: masked.append(sums.totals["masked"])
    )
    folder = run_in_process(small)
    assert masked == [240.0] * 4  # a fifth of six batches of 200
    assert all(value.isfinite().all() for value in _weights(folder).values())


def test_a_gradient_that_is_not_finite_is_not_taken(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, limit: torch.tensor(math.nan))
    folder = run_in_process([*small, "chain.kind=none"])
    start = run_in_process([*small, "chain.kind=none", "train.epochs=0", "name=untrained"])
    trained, untrained = load(folder / "vae.pt")["model"], load(start / "vae.pt")["model"]
    assert all(torch.equal(trained[name], untrained[name]) for name in trained)


def test_a_full_disk_warns_and_training_goes_on(
    small: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hmcvi.training import run

    real, calls = run.save, []

    def sometimes_full(state: dict[str, object], path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise CheckpointError("could not write (No space left on device); the last good one is kept")
        real(state, path)

    monkeypatch.setattr(run, "save", sometimes_full)
    folder = run_in_process([*small, "train.checkpoint_seconds=0.0001"])
    assert "training goes on" in capsys.readouterr().out
    assert (folder / "summary.json").exists()


def test_progress_on_a_terminal_is_a_bar(small: list[str]) -> None:
    main, worker = pty.openpty()
    fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "train.py"), *small]
    process = subprocess.Popen(command, stdout=worker, stderr=worker, env=environment)
    os.close(worker)
    shown = b""
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(main)
    assert process.wait() == 0
    text = shown.decode()
    assert "chain: 100%" in text and "step=" in text and "images/s=" in text and "bound=" in text


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / "chain.pt"
    return load(path if path.exists() else folder / "vae.pt")["model"]
