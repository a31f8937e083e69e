"""Pictures for TensorBoard, as arrays [1, H, W] with values in [0, 1]."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hmcvi.models import VAE

LEAST_SIDE, MOST_SIDE = 56, 224  # smaller images are magnified, but not beyond


def grid(images: Tensor, shape: tuple[int, int], columns: int) -> Tensor:
    """Images [N, D] in rows of `columns`, separated by grey lines; images of one line are made higher."""
    height, width = shape
    tiles = images.detach().cpu().float().reshape(-1, 1, height, width).nan_to_num().clamp(0, 1)
    zoom = max(1, min(-(-LEAST_SIDE // min(shape)), MOST_SIDE // max(shape)))
    tiles = tiles.repeat_interleave(zoom if height > 1 else LEAST_SIDE, 2).repeat_interleave(zoom, 3)
    tiles = torch.nn.functional.pad(tiles, (0, 1, 0, 1), value=0.5)
    missing = -len(tiles) % columns
    tiles = torch.cat([tiles, tiles.new_full((missing, *tiles.shape[1:]), 0.5)])
    rows = tiles.reshape(-1, columns, *tiles.shape[1:])
    return torch.cat([torch.cat([*row], -1) for row in rows], -2)


def reconstructions(model: VAE, x: Tensor, shape: tuple[int, int]) -> Tensor:
    """Data, what the encoder alone makes of it, what the refined posterior makes of it, with these words."""
    with torch.no_grad():
        start = model.decode(model.encoder(x)[0])
    rows = {"data": x, "encoder": start, "refined": model.reconstruct(x)}
    return torch.cat([labelled(grid(images, shape, len(x)), name) for name, images in rows.items()], -2)


def labelled(picture: Tensor, text: str, width: int = 64) -> Tensor:
    """A picture [1, H, W] with a word to its left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height, dpi = picture.shape[-2], 100
    figure = Figure(figsize=(width / dpi, height / dpi), dpi=dpi)
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=9)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    label = torch.from_numpy(np.asarray(canvas.buffer_rgba())[..., 0] / 255).to(picture)
    return torch.cat([label.expand(1, height, width), picture], -1)


def samples(model: VAE, shape: tuple[int, int], number: int = 64) -> Tensor:
    """Images from the prior, the same latents every time."""
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(0)
    return grid(model.generate(number, generator), shape, 8)


def manifold(model: VAE, shape: tuple[int, int], side: int = 15) -> Tensor:
    """Decoded images over the quantiles of a two-dimensional prior."""
    like = next(model.parameters())
    levels = (torch.arange(side, dtype=like.dtype, device=like.device) + 0.5) / side
    z = torch.distributions.Normal(like.new_zeros(()), 1).icdf(levels)
    with torch.no_grad():
        images = model.decode(torch.cartesian_prod(z.flip(0), z).flip(-1))
    return grid(images, shape, side)
