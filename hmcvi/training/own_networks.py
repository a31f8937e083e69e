"""Encoders and decoders by name or by the path of a class, tried out before they are trained."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from hmcvi.internal.imports import import_object, reason
from hmcvi.training.config import ConfigError, ModelConfig

CONVOLUTIONAL = {"encoder": "hmcvi.networks:ConvEncoder", "decoder": "hmcvi.networks:ConvDecoder"}


def build_networks(
    model: ModelConfig, data_dim: int, shape: tuple[int, int]
) -> tuple[nn.Module | None, nn.Module | None]:
    """Encoder and decoder of a configuration; None: that of the VAE itself.

    They are built as Class(data_dim, latent_dim) and Class(latent_dim, data_dim), with those of the keywords
    hidden, shape and likelihood that the class names.
    """
    sizes = {"encoder": (data_dim, model.latent_dim), "decoder": (model.latent_dim, data_dim)}
    options = {"hidden": tuple(model.hidden), "shape": shape, "likelihood": model.likelihood}
    built: dict[str, nn.Module | None] = {"encoder": None, "decoder": None}
    for part, dims in sizes.items():
        path = getattr(model, part) or (CONVOLUTIONAL[part] if model.network == "conv" else None)
        if path is not None:
            setting = f"model.{part}={path}"
            built[part] = network = _build(setting, path, dims, options)
            before = [3] if part == "encoder" else [2, 3]
            is_pair = part == "encoder" or model.likelihood == "gaussian"
            _try(setting, network, [*before, dims[0]], [*before, dims[1]], is_pair)
    return built["encoder"], built["decoder"]


def _build(setting: str, path: str, dims: tuple[int, int], options: dict[str, Any]) -> nn.Module:
    try:
        make = import_object(path)
    except ImportError as error:
        raise ConfigError(f"{setting}: {error}") from error
    try:
        known = inspect.signature(make).parameters
        network = make(*dims, **{name: value for name, value in options.items() if name in known})
    except Exception as error:
        raise ConfigError(f"{setting} cannot be built as Class{dims} ({reason(error)})") from error
    if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
        raise ConfigError(
            f"{setting} must make a torch.nn.Module with parameters, got {type(network).__name__}"
        )
    return network


def _try(setting: str, network: nn.Module, given: list[int], expected: list[int], is_pair: bool) -> None:
    """Refuse a network that maps [..., d] to another shape than it should, or does not depend on it."""
    contract = (
        f"{setting} must map {given} to {'(loc, scale), each ' if is_pair else 'logits '}{expected}, "
        "whatever the dimensions before the last"
    )
    was_training = network.training
    inputs = torch.full(given, 0.5, requires_grad=True)
    try:
        with torch.random.fork_rng(devices=[]):
            output = network.eval()(inputs)
    except Exception as error:
        raise ConfigError(f"{contract}; it failed ({reason(error)})") from error
    finally:
        network.train(was_training)
    parts = tuple(output) if isinstance(output, tuple | list) else (output,)
    fits = len(parts) == 1 + is_pair and all(
        isinstance(part, Tensor) and list(part.shape) == expected for part in parts
    )
    if not fits:
        found = ", ".join(str(list(p.shape)) if isinstance(p, Tensor) else type(p).__name__ for p in parts)
        raise ConfigError(f"{contract}; got {found}")
    if is_pair and not (parts[1] > 0).all():
        raise ConfigError(f"{contract}, with positive scales; got {parts[1].min():g}")
    if (
        not parts[0].requires_grad
        or torch.autograd.grad(parts[0].sum(), inputs, allow_unused=True)[0] is None
    ):
        raise ConfigError(f"{contract}, by a function that autograd can differentiate; it cuts the graph")
