"""`python train.py` from the outside: what it writes, and what it says to bad input."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import shutil
import struct
import termios
import threading
from pathlib import Path

import pytest
import torch

import hmcvi.commands.train as script
from hmcvi.training import (
    CheckpointError,
    ConfigError,
    InterruptGuard,
    Run,
    checkpoint,
    load_config,
    loop,
)
from hmcvi.training.checkpoint import load
from hmcvi.training.tensorboard import TensorBoard
from tests.training.conftest import CHAIN, ROOT, run_in_process, train


def test_the_script_takes_the_steps_of_a_run(small: list[str], tmp_path: Path) -> None:
    """The seed decides: `python train.py` and `Run.train` give the same weights, bit for bit."""
    code, out, err = train(*small, *CHAIN)
    assert code == 0, err
    assert "refinement brought" in out
    by_run = run_in_process([*small, *CHAIN, "name=other"], script.DEFAULT_CONFIG)
    one, other = _weights(tmp_path / "run"), _weights(by_run)
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_summary_and_weights(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert [stage["name"] for stage in summary["stages"]] == ["vae", "chain"]
    for stage in summary["stages"]:
        assert stage["bound"] < 0 < stage["nll"] and stage["bound_se"] > 0 and stage["nll_se"] > 0
        assert stage["nll_sampling_se"] > 0 and 1 <= stage["nll_ess"] <= stage["nll_samples"] == 20
        assert stage["epochs"] == 2 and stage["seconds"] > 0
    assert summary["seed"] == 0
    assert summary["config"]["chain"]["num_hmc"] == 2
    assert (finished / "vae.pt").exists() and (finished / "chain.pt").exists()


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


def test_another_seed_gives_other_weights(small: list[str], finished: Path) -> None:
    one, other = _weights(finished), _weights(run_in_process([*small, *CHAIN, "seed=1"]))
    assert all(not torch.equal(one[name], other[name]) for name in one if one[name].ndim == 2)


def test_start_from_another_run(small: list[str], finished: Path) -> None:
    second = run_in_process([*small, "name=second", f"train.init_from={finished}", "train.epochs=0"])
    old, new = load(finished / "vae.pt")["model"], _weights(second)
    assert all(torch.equal(new[name], old[name]) for name in old)
    with pytest.raises(CheckpointError, match="another architecture"):
        run_in_process([*small, "name=third", f"train.init_from={finished}", "model.latent_dim=5"])


def test_resuming_with_another_architecture_is_refused(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    with pytest.raises(CheckpointError, match="another architecture"), InterruptGuard() as guard:
        Run.resume(folder, ["model.latent_dim=7"]).train(guard)


def test_an_existing_run_is_not_overwritten(finished: Path) -> None:
    with pytest.raises(ConfigError, match="--resume"):
        Run.create(load_config(overrides=[f"runs={finished.parent}", f"name={finished.name}"]))


def test_damaged_images_are_masked_and_parameters_stay_finite(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = loop.prepare

    def damaged(x: torch.Tensor, how: str) -> torch.Tensor:
        x = clean(x, how)
        x[::10, 0], x[5::10, 3] = math.nan, math.inf
        return x

    monkeypatch.setattr(loop, "prepare", damaged)
    masked = []
    monkeypatch.setattr(
        TensorBoard, "training", lambda self, epoch, means: masked.append(means.totals["masked"])
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
    real, calls = checkpoint.save, []

    def sometimes_full(state: dict[str, object], path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise CheckpointError("could not write (No space left on device); the last good one is kept")
        real(state, path)

    monkeypatch.setattr(checkpoint, "save", sometimes_full)
    folder = run_in_process([*small, "train.checkpoint_seconds=0.0001"])
    assert "training goes on" in capsys.readouterr().out
    assert (folder / "summary.json").exists()


def test_progress_on_a_terminal_is_a_bar(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    main, worker = pty.openpty()
    fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    shown = bytearray()
    reader = threading.Thread(target=_read, args=(main, shown))
    reader.start()
    with open(worker, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        assert script.main(small) == 0
        monkeypatch.undo()
    reader.join()
    text = shown.decode()
    assert "chain: 100%" in text and "step=" in text and "images/s=" in text and "bound=" in text


def _read(terminal: int, shown: bytearray) -> None:
    """All that is written to a terminal until it is closed."""
    try:
        while chunk := os.read(terminal, 65536):
            shown += chunk
    except OSError:  # how Linux says so
        pass
    os.close(terminal)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / "chain.pt"
    return load(path if path.exists() else folder / "vae.pt")["model"]
