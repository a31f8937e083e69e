"""Draw the paper's pictures from a trained row with two latents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from experiments.report import save_figure
from experiments.table1.dynamics import LONG, ensemble, particle
from experiments.table1.latent import binarisations, energy_surface, latent_space
from experiments.table1.weights import load_row, stored_config
from hmcvi.data import binarize, load_images
from hmcvi.training import ConfigError

SEED = 3


def write_figures(row: str, out: Path, folder: Path, overrides: Sequence[str] = ()) -> None:
    """Write the pictures of out/row to `folder`, as PNG files."""
    model = load_row(row, out, overrides)
    if model.latent_dim != 2:
        raise ConfigError(f"the pictures show two latents, {row} has {model.latent_dim}")
    data = stored_config(row, out, overrides).data
    images = load_images(data.name, data.root, 0, data.download)
    torch.manual_seed(SEED)
    x, shape = binarize(images.test[:1]), images.shape
    figures = {
        "particle": particle(model, x, 1, LONG),
        "particle-hmc": particle(model, x, 3, 4),
        "ensemble": ensemble(model, x, 1, 4),
        "binarisations": binarisations(images.test[:3], shape),
        "energy-surface": energy_surface(model, x, shape),
    }
    if images.labels is not None:
        figures["latent-space"] = latent_space(model, images.train, images.labels["train"], shape)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = folder / f"table1-{name}.png"
        save_figure(figure, path)
        print(path)
