"""Images that the published IWAEs generate: pixel probabilities of z ~ N(0, I), and images drawn by them.

The binary images are the first of those whose evidence `iwae-evidence` estimates with the same seed.
Written are result.json, the mean brightness of both, and figure.png.  [after Graham 2018, figure 5.3]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.report import configure as configure_output
from experiments.report import save_figure, title, write
from experiments.tempering.iwae import MODELS, SIZES
from hmcvi.commands.images import simulated_images
from hmcvi.models.iwae import load_iwae_npz

__all__ = ["configure", "run"]

ROWS, COLUMNS = 5, 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the weights."""
    configure_output(parser)
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {', '.join(MODELS.values())}")


@torch.no_grad()
def run(args: argparse.Namespace) -> int:
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    panels = figure.subplots(len(MODELS), 2, squeeze=False)
    result = {}
    for row, (name, folder) in zip(panels, MODELS.items(), strict=True):
        model = load_iwae_npz(args.data / folder)
        data = simulated_images(model, SIZES["images"], args.seed)
        assert data.z is not None
        z, x = data.z[: ROWS * COLUMNS], data.x[: ROWS * COLUMNS]
        shown = {"pixel probabilities": model.decode(z), "binary images": x}
        for axes, (kind, images) in zip(row, shown.items(), strict=True):
            axes.imshow(tiled(images), cmap="Greys", vmin=0, vmax=1)
            axes.set_axis_off()
            title(axes, f"{name}: {kind}")
        result[name] = {kind: float(images.double().mean()) for kind, images in shown.items()}
    save_figure(figure, write(args.out, result))
    return 0


def tiled(images: Tensor) -> Tensor:
    """Images [n, side²] as one picture of ROWS times COLUMNS."""
    side = round(images.shape[-1] ** 0.5)
    grid = images.reshape(ROWS, COLUMNS, side, side)
    return grid.permute(0, 2, 1, 3).reshape(ROWS * side, COLUMNS * side)
