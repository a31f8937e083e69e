"""The training loop: one stage of one model, resumable bit for bit between any two batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hmcvi.data import Images, deform
from hmcvi.internal.context import Share
from hmcvi.internal.processes import ALONE, Processes
from hmcvi.models import VAE
from hmcvi.models.vae import Refinement
from hmcvi.networks import GaussianEncoder
from hmcvi.objectives import Bound
from hmcvi.training.averaging import WeightAverage
from hmcvi.training.board import Board
from hmcvi.training.checkpoint import CheckpointError, load_weights
from hmcvi.training.config import Config
from hmcvi.training.diagnostics import Sums, add_refinement, chain_parameters
from hmcvi.training.evaluate import average, prepare
from hmcvi.training.interrupt import InterruptGuard
from hmcvi.training.optimizers import build_optimizers
from hmcvi.training.progress import Progress

VALIDATION_SEED = 1
PICTURE_BATCH = 100


class Stage(NamedTuple):
    """Part of a training run: the plain VAE, or the chain that refines it."""

    name: str
    epochs: int
    lr: float
    epochs_before: int  # of earlier stages, for the horizontal axis of TensorBoard


class Trainer:
    """Ascent of the bound, with a schedule, clipped gradients, averaged and early-best weights.

    Several processes share every batch, draw the same random numbers and hold the same weights.
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
        self.device = torch.device(config.train.device)
        self.batch_size = min(config.train.batch_size, len(images.train))
        self.num_batches = len(images.train) // self.batch_size
        train = config.train
        self.optimizers = build_optimizers(
            model, train.optimizer, stage.lr, train.weight_decay, output_layer(model), train.output_lr
        )
        self.average = WeightAverage(model, config.train.average)
        self.epoch = self.batch = 0
        self.order: Tensor | None = None  # of the images in this epoch
        self.sums = Sums()
        self.validation: float | None = None  # bound of the last epoch, if it was validated
        self.best_bound, self.best_epoch = -math.inf, 0
        self.best_weights: dict[str, Tensor] | None = None
        self.seconds = self.cpu_seconds = 0.0

    def fit(
        self, board: Board | None, guard: InterruptGuard, save_run: Callable[[dict[str, Any]], None]
    ) -> None:
        """Train to the end of the stage and load the best weights, or the last without validation images.

        `save_run` stores a `state_dict()`; only the first process has a board.
        """
        done = self.epoch * self.num_batches + self.batch
        saved = time.monotonic()
        with Progress(self.stage.name, self.stage.epochs, self.num_batches, done) as progress:
            while self.epoch < self.stage.epochs:
                began, cpu_began = time.monotonic(), time.process_time()
                self.train_batch()
                progress.advance()
                if self.batch == self.num_batches:
                    self._end_epoch()
                    if board is not None:
                        self._report(board, progress)
                now = time.monotonic()
                self.seconds += now - began
                self.cpu_seconds += time.process_time() - cpu_began
                due, stopping = self._agree(now - saved > self.config.train.checkpoint_seconds, guard)
                if due or stopping or self.epoch == self.stage.epochs:
                    if board is not None:
                        board.flush()
                    try:
                        save_run(self.state_dict())
                    except CheckpointError as error:
                        if stopping:
                            raise
                        progress.say(f"warning: {error}; training goes on")
                    saved = now
                guard.check()
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
        elif self.stage.epochs:
            self.average.load()

    def train_batch(self) -> None:
        """One step of the optimiser."""
        self.model.train()
        if self.order is None:
            self.order, self.sums = torch.randperm(len(self.images.train)), Sums()
        began = time.perf_counter()
        index = self.order[self.batch * self.batch_size : (self.batch + 1) * self.batch_size]
        images, strength = self.images.train[index], self.config.train.deform
        self.model.zero_grad(set_to_none=True)
        refinement, bound, num_finite = self._add_gradients(images)
        if strength:  # the decoder need not learn deformed images
            with constant(self.model.decoder):
                self._add_gradients(deform(images, self.images.shape, strength))
        norm = math.nan
        if num_finite:
            sum_gradients(self.model, self.processes)
            limit = self.config.train.clip_norm or math.inf
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        if math.isfinite(norm):
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self._learning_rate() * group.get("factor", 1.0)
                optimizer.step()
            self.average.update()
        add_refinement(self.sums, refinement, bound)
        if self.processes.first:
            self.sums.count("skipped", 0 if math.isfinite(norm) else 1)
            self.sums.add("gradient_norm", torch.tensor(norm))
            self.sums.count("seconds", time.perf_counter() - began)
        self.batch += 1

    def _add_gradients(self, images: Tensor) -> tuple[Refinement, Tensor, Tensor]:
        """Those of the mean bound, and how many bounds are finite in all processes.  images: [B, D]"""
        start, stop = self.processes.share(self.batch_size)
        x = prepare(images, self.config.data.binarize)[start:stop].to(self.device)
        share = Share(start, stop, self.batch_size)
        refinement = self.model.run(x, self.config.objective.num_samples, share)
        bound = self.objective(refinement.weights)
        finite = bound.isfinite()
        num_finite = self.processes.sum(finite.sum())
        if finite.any():
            (-bound[finite].sum() / num_finite).backward()
        return refinement, bound, num_finite

    def _agree(self, due: bool, guard: InterruptGuard) -> tuple[bool, bool]:
        """Whether any process finds it time to save, or was asked to stop."""
        asked = -1 if guard.requested is None else guard.requested
        due_now, asked_now = self.processes.max(torch.tensor([int(due), asked])).tolist()
        if asked_now >= 0:
            guard.request(asked_now)
        return bool(due_now), asked_now >= 0

    def _end_epoch(self) -> None:
        self.epoch, self.batch, self.order = self.epoch + 1, 0, None
        self.sums, self.validation = self._all_sums(), None
        last = self.epoch == self.stage.epochs
        if len(self.images.validation) and (last or self.epoch % self.config.train.validate_every == 0):
            with self.average.in_place():
                self.validation = self._validate()

    def _validate(self) -> float:
        """Bound on the validation images, the same draws every time; remembers the best weights."""
        self.model.eval()
        num_samples = self.config.objective.num_samples
        bound = self._average(lambda x: self.model.bound(x, num_samples), self.images.validation)
        if bound > self.best_bound:
            self.best_bound, self.best_epoch = bound, self.epoch
            self.best_weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        return bound

    def _report(self, board: Board, progress: Progress) -> None:
        """The epoch that has ended, on TensorBoard and on the terminal."""
        epoch = self.stage.epochs_before + self.epoch
        speed = self.num_batches * self.batch_size / self.sums.totals["seconds"]
        board.training(epoch, self.sums)
        scalars = {
            "speed/images_per_second": speed,
            "optimiser/learning_rate": self.optimizers[0].param_groups[0]["lr"],
        }
        shown = {"bound": self.sums.mean("bound")}
        if self.validation is not None:
            scalars["bound/validation"] = shown["val"] = self.validation
        board.scalars(epoch, scalars)
        if "#acceptance_rate" in self.sums.totals:
            shown["accept"] = self.sums.mean("acceptance_rate")
        example = self._example()
        if "step_size" in (parameters := chain_parameters(self.model, example)):
            shown["step"] = parameters["step_size"].mean().item()
        shown["images/s"] = speed
        if lost := self.sums.totals["masked"]:
            shown["masked"] = lost
        progress.report(self.epoch, shown)
        board.chain(epoch, self.model, example)
        if self.epoch == self.stage.epochs or self.epoch % self.config.evaluate.images_every == 0:
            self._illustrate(board, epoch, example)

    def _illustrate(self, board: Board, epoch: int, example: Tensor) -> None:
        """The slow part of the report: NLL, histograms, pictures."""
        self.model.eval()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(VALIDATION_SEED)
            board.pictures(epoch, self.model, example, self.images.shape)
        num_samples = self.config.evaluate.validation_nll_samples
        if num_samples and len(self.images.validation):
            some = self.images.validation[: 2 * PICTURE_BATCH]
            nll = self._average(lambda x: self.model.importance_nll(x, num_samples).nll, some)
            board.scalars(epoch, {"nll/validation": nll})

    def _average(self, quantity: Callable[[Tensor], Tensor], images: Tensor) -> float:
        how = self.config.data.binarize
        return average(quantity, images, how, seed=VALIDATION_SEED, device=self.device).mean

    def _example(self) -> Tensor:
        """A fixed batch for pictures and for parameters that depend on x."""
        source = self.images.validation if len(self.images.validation) else self.images.train
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(VALIDATION_SEED)
            return prepare(source[:PICTURE_BATCH], self.config.data.binarize).to(self.device)

    def _learning_rate(self) -> float:
        """Linear warm-up, then constant or half a cosine down to a hundredth: a function of the step."""
        train = self.config.train
        step = self.epoch * self.num_batches + self.batch
        rise = min(1.0, (step + 1) / max(1.0, train.warmup_epochs * self.num_batches))
        progress = step / (self.stage.epochs * self.num_batches)
        fall = 0.5 * (1 + math.cos(math.pi * progress)) if train.schedule == "cosine" else 1.0
        return self.stage.lr * rise * (0.01 + 0.99 * fall)

    def _all_sums(self) -> Sums:
        """Of all processes."""
        total = Sums()
        for part in self.processes.gather(self.sums.totals):
            for name, value in part.items():
                total.count(name, value)
        return total

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened."""
        return {
            "stage": self.stage.name,
            "epoch": self.epoch,
            "batch": self.batch,
            "order": self.order,
            "sums": self._all_sums().totals if self.order is not None else {},
            "best_bound": self.best_bound,
            "best_epoch": self.best_epoch,
            "best_weights": self.best_weights,
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
        load_weights(self.model, state["model"], source)
        load_weights(self.objective, state["objective"], source)
        for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)
        self.epoch, self.batch, self.order = state["epoch"], state["batch"], state["order"]
        self.sums = Sums(state["sums"] if self.processes.first else None)
        self.best_bound, self.best_epoch = state["best_bound"], state["best_epoch"]
        self.best_weights = state["best_weights"]
        self.seconds, self.cpu_seconds = state["seconds"], state["cpu_seconds"]
        self.average.load_state_dict(state["average"])
        torch.set_rng_state(state["rng"].cpu())
        if self.device.type == "cuda":
            torch.cuda.set_rng_state_all([rng.cpu() for rng in state["cuda_rng"]])


def output_layer(model: VAE) -> nn.Module | None:
    """The last layer of our own encoder."""
    return model.encoder.output if isinstance(model.encoder, GaussianEncoder) else None


@contextmanager
def constant(module: nn.Module) -> Iterator[None]:
    """Leave the module's parameters out of gradients."""
    learned = [p for p in module.parameters() if p.requires_grad]
    module.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


def sum_gradients(model: nn.Module, processes: Processes) -> None:
    """Over the processes, those that no process has left out."""
    if processes.size == 1:
        return
    parameters = list(model.parameters())
    there = torch.tensor([float(p.grad is not None) for p in parameters]).to(parameters[0])
    flat = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    summed = processes.sum(torch.cat([there, *(gradient.flatten() for gradient in flat)]))
    anywhere, *parts = summed.split([len(parameters), *(p.numel() for p in parameters)])
    for parameter, present, part in zip(parameters, anywhere.tolist(), parts, strict=True):
        parameter.grad = part.view_as(parameter) if present else None
