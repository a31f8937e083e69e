"""TensorBoard: one folder, one curve per quantity, tags documented in docs/training.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hmcvi.internal.events import open_events
from hmcvi.models import VAE
from hmcvi.training import pictures
from hmcvi.training.config import Config, flat
from hmcvi.training.diagnostics import RunningMeans, chain_parameters
from hmcvi.training.metrics import Metrics

TAGS = {  # name of a running mean -> tag
    "bound": "bound/train",
    "gain": "bound/gain",
    "reconstruction": "parts/reconstruction",
    "prior": "parts/prior",
    "entropy": "parts/entropy",
    "kl": "parts/kl",
    "momentum": "parts/momentum",
    "acceptance": "parts/acceptance",
    "flow": "parts/flow",
    "annealing": "parts/annealing",
    "acceptance_rate": "chain/acceptance_rate",
    "gradient_norm": "optimiser/gradient_norm",
}
FEW = 4  # values that have curves, but no histogram
ALWAYS = ("seed", "data.name", "chain.kind", "train.lr")  # settings that the hparams tab shows of every run
COUNTS = {"divergences": "chain/divergences", "masked": "chain/masked", "skipped": "optimiser/skipped_steps"}


class TensorBoard:
    """Curves, histograms and pictures of one run; the horizontal axis is the epoch."""

    def __init__(self, folder: Path, first_epoch: int) -> None:
        # what an interrupted run wrote after its last checkpoint is hidden
        self.writer = open_events(folder, purge_step=first_epoch if first_epoch > 0 else None)
        self.metrics = Metrics(folder, first_epoch)

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def scalars(self, epoch: int, values: dict[str, float]) -> None:
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, epoch)
        self.metrics.write(epoch, values)

    def mark(self, epoch: int, text: str) -> None:
        """A line of text at an epoch, such as where a stage begins."""
        self.writer.add_text("stage", text, epoch)

    def training(self, epoch: int, means: RunningMeans) -> None:
        """Means and counts of one epoch."""
        curves = {tag: means.mean(name) for name, tag in TAGS.items() if name in means}
        counts = {tag: means.totals[name] for name, tag in COUNTS.items() if name in means.totals}
        self.scalars(epoch, curves | counts)

    def chain(self, epoch: int, parameters: dict[str, Tensor]) -> None:
        """The learned numbers of the chain."""
        self.scalars(epoch, {f"chain/{name}": values.mean().item() for name, values in parameters.items()})
        if "mass" in parameters:
            least, largest = parameters["mass"].aminmax()
            self.scalars(epoch, {"chain/mass_min": least.item(), "chain/mass_max": largest.item()})

    @torch.no_grad()
    def pictures(self, epoch: int, model: VAE, x: Tensor, shape: tuple[int, int]) -> None:
        """Histograms and images for a fixed batch of validation data x."""
        refinement = model.run(x)
        histograms = {
            "histograms/log_weight": refinement.weights.log_weight,
            "histograms/latent": refinement.transition.state.position,
            **{f"histograms/{name}": values for name, values in chain_parameters(model, x).items()},
        }
        for tag, values in histograms.items():
            finite = values[values.isfinite()]
            if finite.numel() > FEW:
                self.writer.add_histogram(tag, finite, epoch)
        self.writer.add_image("images/reconstructions", pictures.reconstructions(model, x[:10], shape), epoch)
        self.writer.add_image("images/samples", pictures.samples(model, shape), epoch)
        if model.latent_dim == 2:
            self.writer.add_image("images/manifold", pictures.manifold(model, shape), epoch)

    def image(self, tag: str, pixels: np.ndarray, epoch: int) -> None:
        """An image in colours 0, …, 255.  [H, W, 3]"""
        self.writer.add_image(tag, pixels, epoch, dataformats="HWC")

    def hyperparameters(self, config: Config, metrics: dict[str, float], epoch: int) -> None:
        """One row of the hparams tab: settings that are not the default ones, and what the run reached."""
        from torch.utils.tensorboard.summary import hparams

        usual = flat(Config())
        settings = {
            key: v if isinstance(v, (bool, int, float)) else str(v)
            for key, v in flat(config).items()
            if key in ALWAYS or v != usual[key]
        }
        for summary in hparams(settings, metrics):
            self.writer._get_file_writer().add_summary(summary)
        self.scalars(epoch, metrics)

    def flush(self) -> None:
        self.writer.flush()
        self.metrics.flush()

    def close(self) -> None:
        self.writer.close()
        self.metrics.close()
