"""A training step asks its device for a number once: whether the gradient is finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hmcvi.training import Run, load_config
from hmcvi.training.build import build_objective
from hmcvi.training.diagnostics import RunningMeans
from hmcvi.training.loop import Trainer
from hmcvi.training.state import stages
from tests.training.conftest import CHAIN, PAPER

aten = torch.ops.aten
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default}


class Waits(TorchDispatchMode):
    """Counts operations whose result Python, or a shape, depends on: those for which a GPU is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self.counts = 0, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func is aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.number += self.counts and (func in WAITING or by_mask)
        return func(*args, **(kwargs or {}))

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        self.counts = False
        yield
        self.counts = True

    def exempt(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def uncounted(*args: Any, **kwargs: Any) -> Any:
            with self.elsewhere():
                return function(*args, **kwargs)

        return uncounted


def trainer(small: list[str], *settings: str) -> Trainer:
    config = load_config(PAPER, [*small, *CHAIN, *settings])
    run = Run.create(config)
    run.set_up()
    images = run.load_images()
    model = run.build_model(images)
    model.chain = run.build_chain(model)
    return Trainer(config, stages(config)[-1], model, build_objective(config), images)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_waits_once(small: list[str], accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart from checks of the model, which each force makes too, and counters of the optimiser."""
    training, waits = trainer(small, f"train.accumulate={accumulate}"), Waits()
    for owner, name in ((training.model, "run"), (training, "step"), (training, "objective")):
        monkeypatch.setattr(owner, name, waits.exempt(getattr(owner, name)))
    with waits:
        training.train_batch()
    assert waits.number == 1
    with waits:
        training.train_batch()
        assert waits.number == 2
        training.means.totals  # noqa: B018
    assert waits.number < 10  # not one for each of its numbers and batches


def test_a_batch_without_a_finite_bound_moves_nothing(small: list[str]) -> None:
    training = trainer(small)
    with torch.no_grad():
        next(training.model.decoder.parameters()).fill_(torch.nan)
    before = [p.detach().clone() for p in training.model.parameters()]
    training.train_batch()
    assert training.means.totals["skipped"] == 1
    for old, new in zip(before, training.model.parameters(), strict=True):
        assert torch.equal(old.nan_to_num(7.0), new.detach().nan_to_num(7.0))
    assert not any(optimizer.state for optimizer in training.optimizers)


def test_means_are_those_of_finite_values() -> None:
    means = RunningMeans({"a": 1.0, "#a": 1.0})
    for values in (torch.tensor([[2.0, torch.nan], [3.0, -torch.inf]]), torch.tensor([6.0])):
        means.add("a", values)
    means.add("none", torch.tensor([torch.inf]))
    assert means.mean("a") == 3.0 and means.totals["#a"] == 4.0
    assert "none" in means and means.mean("none") != means.mean("none")
    assert all(type(total) is float for total in means.totals.values())
