"""The moving average of the weights."""

from __future__ import annotations

import torch
from torch import nn

from hmcvi.training.averaging import WeightAverage


def trajectory(average: WeightAverage, model: nn.Linear, values: list[float]) -> None:
    for value in values:
        nn.init.constant_(model.weight, value)
        average.update()


def test_it_is_the_weighted_sum_of_the_past() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = WeightAverage(model, 0.5)
    trajectory(average, model, [1.0, 2.0, 3.0])
    expected = 0.0
    for step, value in enumerate([1.0, 2.0, 3.0], 1):
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    with average.in_place():
        assert torch.isclose(model.weight, torch.tensor(expected)).all()
    assert (model.weight == 3.0).all()


def test_no_decay_is_the_last_weights() -> None:
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, 0.0)
    trajectory(average, model, [1.0, 2.0])
    average.load()
    assert (model.weight == 2.0).all()
