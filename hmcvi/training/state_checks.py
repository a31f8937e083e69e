"""Whether a stored state of training is one: types, names and shapes, before any of it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Optimizers = list[torch.optim.Optimizer]


def check_state(state: Mapping[str, Any], optimizers: Optimizers, model: nn.Module, num_images: int) -> None:
    """Refuse, by a ValueError, what a damaged or edited checkpoint may hold in place of a state."""
    for name in ("epoch", "batch", "best_epoch"):
        _need(type(state[name]) is int and state[name] >= 0, name)
    for name in ("seconds", "cpu_seconds"):
        _need(isinstance(state[name], int | float) and math.isfinite(state[name]), name)
    _need(isinstance(state["best_bound"], float), "best_bound")
    _need(_is_order(state["order"], num_images), "order")
    _need(all(isinstance(k, str) and isinstance(v, int | float) for k, v in state["sums"].items()), "sums")
    _need(_is_generator(state["rng"]), "rng")
    if state["best_weights"] is not None:
        _need(same_shapes(state["best_weights"], model.state_dict()), "best_weights")
    _need(len(state["optimizers"]) == len(optimizers), "optimizers")
    for optimizer, stored in zip(optimizers, state["optimizers"], strict=True):
        _need(_is_state_of(optimizer, stored), "optimizers")


def same_shapes(stored: Any, own: Mapping[str, Tensor]) -> bool:
    """Whether tensors have the names, shapes and kinds of others."""
    return (
        isinstance(stored, Mapping)
        and stored.keys() == own.keys()
        and all(
            isinstance(value, Tensor)
            and value.shape == own[name].shape
            and value.is_floating_point() == own[name].is_floating_point()
            for name, value in stored.items()
        )
    )


def _is_order(order: Any, num_images: int) -> bool:
    """A permutation of the images, or none."""
    if order is None:
        return True
    is_long = isinstance(order, Tensor) and order.dtype == torch.long and order.shape == (num_images,)
    return is_long and bool((order.sort().values == torch.arange(num_images)).all())


def _is_generator(state: Any) -> bool:
    return (
        isinstance(state, Tensor)
        and state.dtype == torch.uint8
        and state.shape == torch.get_rng_state().shape
    )


def _is_state_of(optimizer: torch.optim.Optimizer, stored: Any) -> bool:
    """Moments have the shapes of the weights, and settings are those that the optimiser has."""
    groups, own = stored["param_groups"], optimizer.state_dict()["param_groups"]
    if len(groups) != len(own) or any(
        group.keys() != like.keys() or group["params"] != like["params"]
        for group, like in zip(groups, own, strict=True)
    ):
        return False
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return all(
        isinstance(place, int)
        and 0 <= place < len(weights)
        and all(_fits(value, weights[place]) for value in moments.values())
        for place, moments in stored["state"].items()
    )


def _fits(value: Any, weight: Tensor) -> bool:
    if isinstance(value, Tensor):
        return value.shape in (weight.shape, torch.Size())
    return value is None or isinstance(value, int | float)


def _need(is_so: bool, name: str) -> None:
    if not is_so:
        raise ValueError(f"its {name} cannot be those of a training run")
