"""Trained models and the images to judge them by."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.chain import Chain
from hmcvi.data import binarize, load_images
from hmcvi.models import VAE, load_iwae_npz
from hmcvi.models.iwae import is_iwae_folder
from hmcvi.training import CheckpointError, Config, ConfigError, load_config
from hmcvi.training.build import build_model
from hmcvi.training.checkpoint import load
from hmcvi.training.config import DataConfig
from hmcvi.training.evaluate import prepare
from hmcvi.training.run import load_vae


class Data(NamedTuple):
    """Images as the model sees them, and where they come from."""

    x: Tensor  # [N, D]
    z: Tensor | None  # exact draws of the posteriors of simulated images  [N, d]
    source: str


def load_model(folder: Path) -> tuple[VAE, Config | None]:
    """Encoder and decoder of a run as its last stage left them, with its settings; or published weights."""
    folder = folder.expanduser()
    if is_iwae_folder(folder):
        return load_iwae_npz(folder), None
    weights = next((path for name in ("chain.pt", "vae.pt") if (path := folder / name).is_file()), None)
    if weights is None or not (folder / "config.yaml").is_file():
        raise CheckpointError(
            f"{folder} holds no trained weights: give the folder of a finished run (config.yaml with vae.pt "
            "or chain.pt), or of published IWAE weights (decoder_params.npz, …)"
        )
    config, stored = load_config(folder / "config.yaml"), load(weights).get("model")
    first_layer = stored.get("encoder.net.0.weight") if isinstance(stored, dict) else None
    if first_layer is None:
        raise CheckpointError(f"{weights} holds no encoder of a run")
    model = build_model(config, first_layer.shape[1], Chain())
    load_vae(model, weights)
    return model.eval().requires_grad_(False), config


@torch.no_grad()
def simulated_images(model: VAE, count: int, seed: int) -> Data:
    """z ~ p(z), x ~ p(x | z): then z is an exact draw of p(z | x)."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, model.latent_dim, generator=generator)
    if model.likelihood == "bernoulli":
        return Data(binarize(model.decode(z), generator), z, "drawn from the model")
    loc, scale = model.decoder(z)
    return Data(loc + scale * torch.randn(loc.shape, generator=generator), z, "drawn from the model")


def held_out_images(
    config: Config | None, dataset: str | None, root: str | None, count: int, seed: int
) -> Data:
    """The first test images, binarised as they were in training, dynamically if nothing is known of it."""
    if config is None and dataset is None:
        raise ConfigError("published weights do not say what they model: add --dataset mnist, or --simulated")
    data = DataConfig() if config is None else config.data
    name, how = dataset or data.name, data.binarize
    images = load_images(name, root or data.root, data.validation if config else None, data.download)
    if len(images.test) < count:
        raise ConfigError(f"{name} has {len(images.test)} test images, {count} were asked for")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Data(prepare(images.test[:count], how), None, f"{name}, test, {how}")
