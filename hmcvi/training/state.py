"""Everything that changes while a stage is trained: saved and restored bit for bit."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hmcvi.data import Images
from hmcvi.internal.processes import ALONE, Processes
from hmcvi.internal.storage import digest, reading
from hmcvi.models import VAE
from hmcvi.networks import GaussianEncoder
from hmcvi.objectives import Bound
from hmcvi.training.averaging import WeightAverage
from hmcvi.training.checkpoint import load_weights
from hmcvi.training.config import Config, ConfigError
from hmcvi.training.diagnostics import RunningMeans
from hmcvi.training.optimizers import build_optimizers
from hmcvi.training.state_checks import check_state


class Stage(NamedTuple):
    """Part of a training run: the plain VAE, or the chain that refines it."""

    name: str
    epochs: int
    lr: float
    epochs_before: int  # of earlier stages, for the horizontal axis of TensorBoard
    frozen: tuple[str, ...] = ()  # parts of the model that are not trained


def stages(config: Config) -> list[Stage]:
    """The plain VAE, then the chain from its weights; one of them alone if the configuration says so."""
    train = config.train
    if config.chain.kind == "none":
        return [Stage("vae", train.epochs, train.lr, 0)]
    before = 0 if train.init_from is not None else train.pretrain_epochs
    chain = Stage("chain", train.epochs, train.lr, before, tuple(train.freeze))
    return [Stage("vae", before, train.pretrain_lr, 0), chain] if before else [chain]


class Cost(NamedTuple):
    """What the training of a stage took."""

    epochs: int
    best_epoch: int  # whose weights are kept; 0 without validation images
    seconds: float
    cpu_seconds: float


class TrainingState:
    """A model in training: its weights, their average and the best so far, optimisers, the place in the data.

    epoch: how many are finished.  batch: how many of this epoch are.
    """

    def __init__(
        self,
        config: Config,
        stage: Stage,
        model: VAE,
        objective: Bound,
        images: Images,
        processes: Processes = ALONE,
    ) -> None:
        self.config, self.stage, self.images, self.processes = config, stage, images, processes
        self.model, self.objective = model, objective
        objective.pool = processes.sum
        for part in stage.frozen:
            getattr(model, part).requires_grad_(False)
        train = config.train
        self.device = torch.device(train.device)
        self.batch_size = min(train.batch_size, len(images.train))
        self.num_batches = len(images.train) // self.batch_size
        self.optimizers = build_optimizers(
            model, train.optimizer, stage.lr, train.weight_decay, output_layer(model), train.output_lr
        )
        self._refuse_impossible()
        if not self.optimizers:
            raise ConfigError("nothing is left to train: the chain has no parameters and the rest is frozen")
        self.average = WeightAverage(model, train.average)
        self.epoch = self.batch = 0
        self.order: Tensor | None = None  # of the images in this epoch
        self.means = RunningMeans()  # over this epoch
        self.validation: float | None = None  # bound of the last epoch, if it was validated
        self.best_bound, self.best_epoch = -math.inf, 0
        self.best_weights: dict[str, Tensor] | None = None
        self.num_plateaus = self.last_plateau = 0  # of the validation bound, and the epoch of the last one
        self.seconds = self.cpu_seconds = 0.0

    def _refuse_impossible(self) -> None:
        """Refuse settings that these images, or this number of processes, do not allow."""
        train, share = self.config.train, self.batch_size // self.processes.size
        if train.accumulate > share:
            raise ConfigError(
                f"train.accumulate must be at most the {share} images of a batch that a process has, got "
                f"{train.accumulate}"
            )
        if not len(self.images.validation) and (train.patience is not None or train.schedule == "plateau"):
            raise ConfigError(
                "train.patience and train.schedule=plateau need validation images: set data.validation"
            )

    def cost(self) -> Cost:
        return Cost(self.epoch, self.best_epoch, round(self.seconds, 2), round(self.cpu_seconds, 2))

    @cached_property
    def data(self) -> str:
        """By which the training images are known again."""
        return digest(self.images.train)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened."""
        return {
            "stage": self.stage.name,
            "data": self.data,
            "epoch": self.epoch,
            "batch": self.batch,
            "order": self.order,
            "sums": self.means.of_all(self.processes).totals if self.order is not None else {},
            "best_bound": self.best_bound,
            "best_epoch": self.best_epoch,
            "best_weights": self.best_weights,
            "plateaus": (self.num_plateaus, self.last_plateau),
            "planned_epochs": self.stage.epochs,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "average": self.average.state_dict(),
            "model": self.model.state_dict(),
            "objective": self.objective.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
        }

    def load_state_dict(self, state: dict[str, Any], source: Path) -> None:
        """Go on from a state that `source` holds."""
        with reading(source):
            self._load(state, source)

    def _load(self, state: dict[str, Any], source: Path) -> None:
        load_weights(self.model, state["model"], source)
        load_weights(self.objective, state["objective"], source)
        check_state(state, self.optimizers, self.model, len(self.images.train))
        for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)
        self.epoch, self.batch, self.order = state["epoch"], state["batch"], state["order"]
        self.means = RunningMeans(state["sums"] if self.processes.first else None)
        self.best_bound, self.best_epoch = state["best_bound"], state["best_epoch"]
        self.best_weights = state["best_weights"]
        self.num_plateaus, self.last_plateau = state.get("plateaus", (0, 0))
        self.seconds, self.cpu_seconds = state["seconds"], state["cpu_seconds"]
        self.average.load_state_dict(state["average"])
        torch.set_rng_state(state["rng"].cpu())
        if self.device.type == "cuda":
            torch.cuda.set_rng_state_all([rng.cpu() for rng in state["cuda_rng"]])


def output_layer(model: VAE) -> nn.Module | None:
    """The last layer of our own encoder."""
    return model.encoder.output if isinstance(model.encoder, GaussianEncoder) else None
