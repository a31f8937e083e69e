"""train.freeze: the chain learns as it would, and what is frozen stays, bit for bit."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import torch

from hmcvi.data import load_images
from hmcvi.training import ConfigError, Interrupted, InterruptGuard, Run, load_config
from hmcvi.training.build import build_chain, build_model, build_objective
from hmcvi.training.checkpoint import load
from hmcvi.training.loop import Trainer
from hmcvi.training.state import stages
from tests.training.conftest import CHAIN, SMALL, run_in_process

BOTH = "train.freeze=[encoder,decoder]"
HARD = ["train.optimizer=muon", "train.weight_decay=0.5", "train.average=0.9", "train.deform=1"]


def weights_of(folder: Path, stage: str, part: str) -> dict[str, torch.Tensor]:
    return {name: v for name, v in load(folder / f"{stage}.pt")["model"].items() if name.startswith(part)}


@pytest.mark.parametrize("freeze", [["encoder"], ["decoder"], ["encoder", "decoder"]])
def test_the_frozen_parts_stay_and_all_else_moves(small: list[str], freeze: list[str]) -> None:
    folder = run_in_process([*small, *CHAIN, *HARD, f"train.freeze=[{','.join(freeze)}]"])
    for part in ("encoder", "decoder"):
        before, after = (weights_of(folder, stage, part) for stage in ("vae", "chain"))
        same = [torch.equal(before[name], after[name]) for name in before]
        assert all(same) if part in freeze else not any(same), part
    start = run_in_process([*small, *CHAIN, "name=start", "train.epochs=0", f"train.init_from={folder}"])
    before, after = (weights_of(run, "chain", "chain") for run in (start, folder))
    assert not any(torch.equal(before[name], after[name]) for name in after)


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_the_chain_gets_the_gradient_it_would_get(memory: str) -> None:
    """Forces are still differentiated with respect to z, twice."""
    images, gradients = load_images("digits"), []
    for freeze in ("[]", "[encoder,decoder]"):
        config = load_config(overrides=[*SMALL, *CHAIN, f"chain.memory={memory}", f"train.freeze={freeze}"])
        torch.manual_seed(5)
        model = build_model(config, 64, build_chain(config.chain, 2, 64))
        trainer = Trainer(config, stages(config)[-1], model, build_objective(config), images)
        trainer.train_batch()
        held = {p for o in trainer.optimizers for group in o.param_groups for p in group["params"]}
        expected = model.chain if freeze != "[]" else model
        assert held == set(expected.parameters())
        assert all(p.grad is None for p in model.parameters() if p not in held)
        gradients.append([p.grad for p in model.chain.parameters()])
    norms = [torch.stack([g.square().sum() for g in found if g is not None]).sum() for found in gradients]
    assert norms[0] > 0
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [*SMALL, *CHAIN, *HARD, BOTH, f"runs={tmp_path}", "train.checkpoint_seconds=1000"]
    whole = run_in_process([*settings, "name=whole"])
    real = Trainer.train_batch

    def interrupted(trainer: Trainer) -> None:
        real(trainer)
        if (trainer.stage.name, trainer.epoch, trainer.batch) == ("chain", 1, 2):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "train_batch", interrupted)
    with pytest.raises(Interrupted):
        run_in_process([*settings, "name=run"])
    monkeypatch.undo()
    with InterruptGuard() as guard:
        Run.resume(tmp_path / "run").train(guard)
    one, other = (load(folder / "chain.pt")["model"] for folder in (whole, tmp_path / "run"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.freeze=[encoder,decoders]"], "list of encoder, decoder, got 'decoders'"),
        (["train.freeze=[chain]"], "got 'chain'"),
        (["train.freeze=encoder"], "train.freeze"),
        ([BOTH, "chain.kind=none"], "choose a chain"),
        ([BOTH, "train.pretrain_epochs=0"], "random weights"),
    ],
)
def test_what_cannot_be_frozen_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(overrides=overrides)


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_chain_without_parameters_leaves_nothing_to_train(small: list[str], optimizer: str) -> None:
    with pytest.raises(ConfigError, match="nothing is left to train"):
        run_in_process([*small, BOTH, "chain.kind=flow", "chain.num_flows=0", f"train.optimizer={optimizer}"])


def test_a_chain_of_a_few_numbers_is_trained_by_adam_alone(small: list[str]) -> None:
    folder = run_in_process([*small, BOTH, "chain.kind=hvae", "train.optimizer=muon"])
    assert all(value.ndim < 2 for value in weights_of(folder, "chain", "chain").values())


def test_a_stage_is_not_frozen_on_its_way(finished: Path, tmp_path: Path) -> None:
    """Neither while it goes on, nor afterwards in its records."""
    folder = shutil.copytree(finished, tmp_path / "copy")
    for overrides, message in (([BOTH, "train.epochs=3"], "has begun with"), ([BOTH], "is finished")):
        with pytest.raises(ConfigError, match=message), InterruptGuard() as guard:
            Run.resume(folder, overrides).train(guard)
        assert load_config(folder / "config.yaml").train.freeze == []
