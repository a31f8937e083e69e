"""Training from Python: a VAE and arrays in place of a configuration."""

from __future__ import annotations

import copy
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hmcvi.chain import Chain
from hmcvi.data import Images
from hmcvi.data.own import as_pixels, limited, split_own
from hmcvi.models import VAE
from hmcvi.training.checkpoint import load, load_weights
from hmcvi.training.config import GIVEN, Config, ConfigError, load_config
from hmcvi.training.interrupt import Interrupted, InterruptGuard
from hmcvi.training.run import Run
from hmcvi.training.scores import has_chain
from hmcvi.training.summary import report

Array = np.ndarray | Tensor
SETTABLE = ("train.", "evaluate.", "objective.", "data.limit")


class FittedRun(Run):
    """A run whose model and images are given; `print(run)` shows its report."""

    vae: VAE
    images: Images
    summary: dict[str, Any]

    def load_images(self) -> Images:
        return self.images

    def new_model(self, images: Images) -> VAE:
        """A copy of the encoder and decoder; the given ones change at the end alone."""
        model = copy.deepcopy(self.vae)
        model.chain = Chain()
        return model

    def build_chain(self, model: VAE) -> Chain:
        return copy.deepcopy(cast(Chain, self.vae.chain))

    def train(self, guard: InterruptGuard, begun: Callable[[], None] | None = None) -> dict[str, Any]:
        """As `Run.train`; at the end the given VAE has the weights of the last stage."""
        self.summary = super().train(guard, begun)
        path = self.folder / f"{self.summary['stages'][-1]['name']}.pt"
        load_weights(self.vae, load(path)["model"], path)
        return self.summary

    def __str__(self) -> str:
        return report(self.summary)


def fit(
    vae: VAE,
    train: Array,
    test: Array | None = None,
    *,
    folder: str | Path | None = None,
    epochs: int = 100,
    pretrain_epochs: int = 0,
    batch_size: int = 100,
    lr: float = 1e-3,
    binarize: str | None = None,
    validation: int | Array | None = None,
    seed: int = 0,
    settings: Sequence[str] = (),
    progress: bool = True,
) -> FittedRun:
    """Train a VAE with its chain, evaluate it on the test images, and leave a run in `folder`.

    train, test: grey images in [0, 1], or bytes, [N, D] or [N, height, width]; without test images a fifth
        of the training images.  validation: how many of them, or which, choose the best weights; None: a
        tenth.
    folder: of the run; None: a new one in runs/.  Called again with the folder of a run, it goes on from its
        last checkpoint, or, if that is finished, loads its weights.
    pretrain_epochs: of the VAE without its chain, before.
    binarize: dynamic, threshold or none; None: dynamic for a bernoulli likelihood.
    settings: others, as key=value in the words of `hmcvi/training/config.py`.
    progress: whether to print how far training and evaluation are.

    The random numbers of torch are left as they were.
    """
    if not isinstance(vae.chain, Chain):
        vae.chain = Chain([vae.chain])
    device = next(vae.parameters()).device
    given = {
        "seed": seed,
        "data.binarize": binarize or ("dynamic" if vae.likelihood == "bernoulli" else "none"),
        "model.likelihood": vae.likelihood,
        "model.latent_dim": vae.latent_dim,
        "train.epochs": epochs,
        "train.pretrain_epochs": pretrain_epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "train.pretrain_lr": lr,
        "train.device": device,
    }
    config = _configure([f"{key}={value}" for key, value in given.items()], settings)
    images = limited(_images(vae, train, test, validation), config.data.limit)
    run = _open(None if folder is None else Path(folder).expanduser(), _marked(config, vae, images))
    run.vae, run.images, run.shows_progress = vae, images, progress
    guard = InterruptGuard()
    is_main = threading.current_thread() is threading.main_thread()  # others get no signals
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            with guard if is_main else nullcontext():
                run.train(guard)
        except Interrupted as stop:
            if stop.exit_code != 128 + signal.SIGINT:
                raise
            raise KeyboardInterrupt(
                f"stopped and saved: fit(..., folder={str(run.folder)!r}) goes on"
            ) from None
    return run


def _configure(given: Sequence[str], settings: Sequence[str]) -> Config:
    for setting in settings:
        if not setting.startswith(SETTABLE):
            raise ConfigError(
                f"settings={setting!r}: the images and the model are given; other settings begin with "
                f"{', '.join(SETTABLE)}"
            )
    return load_config(overrides=[*given, *settings])


def _images(vae: VAE, train: Array, test: Array | None, validation: int | Array | None) -> Images:
    """The images split in three, in the precision of the model."""
    number = validation if isinstance(validation, int) else None
    held = (
        None if validation is None or number is not None else as_pixels(cast(Array, validation), "validation")
    )
    images = split_own(
        "the images",
        as_pixels(train, "train"),
        None if test is None else as_pixels(test, "test"),
        number,
        held,
    )
    if (dim := images.train.shape[1]) != vae.data_dim:
        raise ConfigError(f"the VAE models {vae.data_dim} pixels, the images have {dim}: build it for {dim}")
    dtype = next(vae.parameters()).dtype
    train_rows, held_rows, test_rows = (split.to(dtype) for split in images[:3])
    return Images(train_rows, held_rows, test_rows, None, images.shape)


def _marked(config: Config, vae: VAE, images: Images) -> Config:
    """The configuration of a run that no configuration describes, with the sizes of its images."""
    sizes = " + ".join(str(len(split)) for split in (images.train, images.validation, images.test))
    data = replace(config.data, name=f"{GIVEN}: {sizes} images of {images.shape[0]}×{images.shape[1]}")
    return replace(config, data=data, chain=replace(config.chain, kind=GIVEN if has_chain(vae) else "none"))


def _open(folder: Path | None, config: Config) -> FittedRun:
    """A new run, or one that goes on."""
    if folder is None:
        return cast(FittedRun, FittedRun.create(config))
    config = replace(config, runs=str(folder.parent), name=folder.name)
    if not (folder / "checkpoint.pt").exists():
        return cast(FittedRun, FittedRun.create(config))
    before = load_config(folder / "config.yaml").data.name
    if before != config.data.name:
        raise ConfigError(f"the run {folder} has {before}, got {config.data.name}: choose another folder")
    return cast(FittedRun, FittedRun.resume(folder, config=config))
