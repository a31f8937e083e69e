"""What can be seen of a training run after every epoch: TensorBoard and the numbers of its progress."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.training.diagnostics import chain_parameters
from hmcvi.training.evaluation import VALIDATION_SEED, average, prepare
from hmcvi.training.state import TrainingState
from hmcvi.training.tensorboard import TensorBoard

PICTURE_BATCH = 100


class Monitor:
    """Reports on epochs of a training run."""

    def __init__(self, tensorboard: TensorBoard) -> None:
        self.tensorboard = tensorboard

    def report(self, state: TrainingState) -> dict[str, float]:
        """Write the epoch that has ended to TensorBoard; what a terminal should show of it."""
        epoch, means = state.stage.epochs_before + state.epoch, state.means
        speed = state.num_batches * state.batch_size / means.totals["seconds"]
        rate = state.optimizers[0].param_groups[0]["lr"]
        scalars = {"speed/images_per_second": speed, "optimiser/learning_rate": rate}
        shown = {"bound": means.mean("bound")}
        if state.validation is not None:
            scalars["bound/validation"] = shown["val"] = state.validation
        if "acceptance_rate" in means:
            shown["accept"] = means.mean("acceptance_rate")
        x = example(state)
        if "step_size" in (parameters := chain_parameters(state.model, x)):
            shown["step"] = parameters["step_size"].mean().item()
        shown["images/s"] = speed
        if masked := means.totals["masked"]:
            shown["masked"] = masked
        self.tensorboard.training(epoch, means)
        self.tensorboard.scalars(epoch, scalars)
        self.tensorboard.chain(epoch, parameters)
        if state.epoch == state.stage.epochs or state.epoch % state.config.evaluate.images_every == 0:
            self.illustrate(epoch, state, x)
        self.tensorboard.flush()  # before the epoch is saved: a resumed run does not write it again
        return shown

    def illustrate(self, epoch: int, state: TrainingState, x: Tensor) -> None:
        """The slow part of the report: NLL, histograms, pictures.  x: [B, D]"""
        model, images = state.model.eval(), state.images
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(VALIDATION_SEED)
            self.tensorboard.pictures(epoch, model, x, images.shape)
        num_samples = state.config.evaluate.validation_nll_samples
        if num_samples and len(images.validation):
            nll = average(
                lambda x: model.importance_nll(x, num_samples).nll,
                images.validation[: 2 * PICTURE_BATCH],
                state.config.data.binarize,
                seed=VALIDATION_SEED,
                device=state.device,
            )
            self.tensorboard.scalars(epoch, {"nll/validation": nll.mean})


def example(state: TrainingState) -> Tensor:
    """A fixed batch for pictures and for parameters that depend on x.  [B, D]"""
    images = state.images
    source = images.validation if len(images.validation) else images.train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(VALIDATION_SEED)
        return prepare(source[:PICTURE_BATCH], state.config.data.binarize).to(state.device)
