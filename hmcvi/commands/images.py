"""Trained models and the images they are applied to, for all commands."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.data import binarize, load_images
from hmcvi.internal.seeds import generator as seeded
from hmcvi.internal.seeds import seed_all
from hmcvi.models import VAE, load_iwae_npz
from hmcvi.models.iwae import is_iwae_folder
from hmcvi.training import ConfigError, load_run
from hmcvi.training.evaluation import prepare


class Data(NamedTuple):
    """Images as the model sees them, and where they come from."""

    x: Tensor  # [N, D]
    z: Tensor | None  # exact draws of the posteriors of simulated images  [N, d]
    source: str


class TestSet(NamedTuple):
    """Images of which neither training nor validation has seen any."""

    images: Tensor  # [N, D]
    shape: tuple[int, int]
    name: str
    binarize: str


def open_run(folder: Path, dataset: str | None = None, root: str | None = None) -> tuple[VAE, TestSet]:
    """The model of a run, and its test set; `dataset` and `root` replace those of the run."""
    overrides = {"data.name": dataset, "data.root": root}
    run = load_run(folder, [f"{key}={value}" for key, value in overrides.items() if value is not None])
    images, data = run.images, run.config.data
    if images.test.shape[-1] != run.model.data_dim:
        raise ConfigError(
            f"{data.name} has images of {images.test.shape[-1]} pixels, the model of {folder} is for "
            f"{run.model.data_dim}"
        )
    return run.model.requires_grad_(False), TestSet(images.test, images.shape, data.name, data.binarize)


def load_model(folder: Path, dataset: str | None, root: str | None) -> tuple[VAE, TestSet | None]:
    """Encoder and decoder of a run or of published weights, and the test set they are for, if it is known."""
    if not is_iwae_folder(folder):
        return open_run(folder, dataset, root)
    model = load_iwae_npz(folder)
    if dataset is None:
        return model, None
    images = load_images(dataset, root)
    return model, TestSet(images.test, images.shape, dataset, "dynamic")


@torch.no_grad()
def simulated_images(model: VAE, count: int, seed: int) -> Data:
    """Draw z ~ p(z), x ~ p(x | z): then z is an exact draw of p(z | x)."""
    generator = seeded(seed)
    z = torch.randn(count, model.latent_dim, generator=generator)
    if model.likelihood == "bernoulli":
        return Data(binarize(model.decode(z), generator), z, "drawn from the model")
    loc, scale = model.decoder(z)
    return Data(loc + scale * torch.randn(loc.shape, generator=generator), z, "drawn from the model")


def held_out_images(test: TestSet | None, count: int, seed: int) -> Data:
    """The first test images, binarised as they were in training."""
    if test is None:
        raise ConfigError("published weights do not say what they model: add --dataset mnist, or --simulated")
    if len(test.images) < count:
        raise ConfigError(f"{test.name} has {len(test.images)} test images, {count} were asked for")
    with torch.random.fork_rng(devices=[]):
        seed_all(seed)
        x = prepare(test.images[:count], test.binarize)
    return Data(x, None, f"{test.name}, test, {test.binarize}")
