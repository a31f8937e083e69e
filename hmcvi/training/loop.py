"""The training loop: one stage of one model, resumable bit for bit between any two batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hmcvi.data import deform
from hmcvi.internal.context import Share
from hmcvi.models.vae import Refinement
from hmcvi.sampling.progress import LINES, Progress
from hmcvi.training.checkpoint import Checkpoints, State
from hmcvi.training.diagnostics import RunningMeans, add_refinement
from hmcvi.training.evaluation import VALIDATION_SEED, average, prepare
from hmcvi.training.gradients import constant, split, sum_gradients
from hmcvi.training.interrupt import InterruptGuard
from hmcvi.training.monitor import Monitor
from hmcvi.training.optimizers import learning_rate
from hmcvi.training.state import TrainingState


class Trainer(TrainingState):
    """Ascent of the bound, with a schedule, clipped gradients, averaged and early-best weights.

    Several processes share every batch, draw the same random numbers and hold the same weights.
    """

    def fit(
        self,
        guard: InterruptGuard,
        save: Callable[[State], None],
        monitor: Monitor | None,
        shows_progress: bool = True,
    ) -> None:
        """Train to the end of the stage and load the best weights, or the last without validation images.

        save: stores a `state_dict()`.  Only the first process has a monitor.
        """
        epochs, done = self.stage.epochs, self.epoch * self.num_batches + self.batch
        checkpoints = Checkpoints(save, self.config.train.checkpoint_seconds, guard, self.processes)
        with Progress(
            self.stage.name,
            epochs,
            unit="epoch",
            parts=self.num_batches,
            done=done,
            shown=shows_progress,
            lines=LINES,
        ) as progress:
            while self.epoch < epochs and not self.is_out_of_patience():
                while self.batch < self.num_batches:
                    with self.timed():
                        self.train_batch()
                    progress.advance()
                    checkpoints.pause(self.state_dict, progress.say)
                with self.timed():
                    self.end_epoch()
                    if monitor is not None:
                        progress.show(monitor.report(self))
                ends = self.epoch == epochs or self.is_out_of_patience()
                checkpoints.pause(self.state_dict, progress.say, last=ends)
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
        elif epochs:
            self.average.load()

    def train_batch(self) -> None:
        """One step: images -> weights of the chains -> bound -> gradients -> optimiser."""
        began = time.perf_counter()
        self.model.train()
        images, strength = self.next_images(), self.config.train.deform
        self.model.zero_grad(set_to_none=True)
        parts, num_finite = self.add_gradients(images)
        if strength:  # the decoder need not learn deformed images
            with constant(self.model.decoder):
                self.add_gradients(deform(images, self.images.shape, strength))
        norm = self.clip_gradients().where(num_finite > 0, math.nan).item()  # waits for the device, once
        has_moved = math.isfinite(norm)
        if has_moved:
            self.step()
        for refinement, bound in parts:
            add_refinement(self.means, refinement, bound)
        if self.processes.first:
            self.means.count("skipped", 0 if has_moved else 1)
            self.means.count("gradient_norm", norm if has_moved else 0.0)
            self.means.count("#gradient_norm", 1 if has_moved else 0)
            self.means.count("seconds", time.perf_counter() - began)
        self.batch += 1

    def next_images(self) -> Tensor:
        """The next batch, in a random order that is drawn for every epoch.  [B, D]"""
        if self.order is None:
            self.order, self.means = torch.randperm(len(self.images.train)), RunningMeans()
        start = self.batch * self.batch_size
        return self.images.train[self.order[start : start + self.batch_size]]

    def add_gradients(self, images: Tensor) -> tuple[list[tuple[Refinement, Tensor]], Tensor]:
        """Add the gradients of minus the mean bound.  images: [B, D]

        What the chains did and the bounds, for each part of this process's share of the batch, and how many
        bounds are finite in all.  Parts draw the random numbers that the whole batch would.
        """
        x, total = prepare(images, self.config.data.binarize), torch.zeros((), device=self.device)
        done: list[tuple[Refinement, Tensor]] = []
        parts = split(*self.processes.share(self.batch_size), self.config.train.accumulate)
        for start, stop in parts:
            share = Share(start, stop, self.batch_size)
            with torch.random.fork_rng(self.gpus(), enabled=stop < parts[-1][1]):
                own = x[start:stop].to(self.device)
                refinement = self.model.run(own, self.config.objective.num_samples, share)
            bound = self.objective(refinement.weights)
            finite = bound.isfinite()
            counts = torch.stack([finite.sum(), torch.ones_like(finite).sum()])
            num_finite, size = self.processes.sum(counts)
            if bound.requires_grad:
                mean = bound.where(finite, 0.0).sum() / num_finite.clamp(min=1)
                (-mean * (size / self.batch_size)).backward()
            done.append((refinement, bound))
            total = total + num_finite
        return done, total

    def clip_gradients(self) -> Tensor:
        """Add up the gradients of all processes and clip them; their norm before that.  []"""
        sum_gradients(self.model, self.processes)
        limit = self.config.train.clip_norm or math.inf
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).to(self.device)

    def step(self) -> None:
        """Move the weights, and their average, at the learning rate of the schedule."""
        train, done = self.config.train, self.epoch * self.num_batches + self.batch
        num_steps, num_warmup = self.stage.epochs * self.num_batches, train.warmup_epochs * self.num_batches
        rate = learning_rate(self.stage.lr, train.schedule, done, num_steps, num_warmup, self.num_plateaus)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get("factor", 1.0)
            optimizer.step()
        self.average.update()

    def end_epoch(self) -> None:
        """Count the epoch, validate the averaged weights and remember the best."""
        self.epoch, self.batch, self.order = self.epoch + 1, 0, None
        self.means, self.validation = self.means.of_all(self.processes), None
        last = self.epoch == self.stage.epochs
        if len(self.images.validation) and (last or self.epoch % self.config.train.validate_every == 0):
            with self.average.in_place():
                self.validation = self.validate()
                if self.validation > self.best_bound:
                    self.best_bound, self.best_epoch = self.validation, self.epoch
                    self.best_weights = {name: v.clone() for name, v in self.model.state_dict().items()}
        self.notice_plateau()

    def notice_plateau(self) -> None:
        """Lower the learning rate of a plateau schedule if the validation bound has not improved for long."""
        train = self.config.train
        if train.schedule == "plateau":
            since = max(self.best_epoch, self.last_plateau)
            if self.epoch - since >= train.plateau_epochs:
                self.num_plateaus, self.last_plateau = self.num_plateaus + 1, self.epoch

    def is_out_of_patience(self) -> bool:
        """Whether the stage ends early because the validation bound no longer improves."""
        patience = self.config.train.patience
        return patience is not None and self.epoch - self.best_epoch >= patience

    def gpus(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []

    def validate(self) -> float:
        """Bound on the validation images, the same draws every time."""
        self.model.eval()
        how, num_samples = self.config.data.binarize, self.config.objective.num_samples
        return average(
            lambda x: self.model.bound(x, num_samples),
            self.images.validation,
            how,
            seed=VALIDATION_SEED,
            device=self.device,
        ).mean

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what is done within it as training time; saving is not."""
        began, cpu_began = time.monotonic(), time.process_time()
        yield
        self.seconds += time.monotonic() - began
        self.cpu_seconds += time.process_time() - cpu_began
