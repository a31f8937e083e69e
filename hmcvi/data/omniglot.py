"""Omniglot (Lake, Salakhutdinov & Tenenbaum 2015) as 28×28 grey images, ink = 1."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hmcvi.data.download import RemoteFile, obtain
from hmcvi.data.files import REMEDY, DataError, open_store, read_npz
from hmcvi.data.images import Images, split_images

SIDE = 28
NUM_VALIDATION = 1345
SPLIT_SEED = 0
BASE_URL = (
    "https://raw.githubusercontent.com/bitsandscraps/omniglot/b0481240b7eb42393285a93ce7d2f266ff10c62b/"
)
SHA256 = {
    "background": "8bf84167413cd00beacdce3fe582f780ab538d8dbef043a6d688f2527bbce199",
    "evaluation": "0b84c7ffd94c4841c0040e529c86a82eaaccb986d8eadad5673f7991b7475276",
}
SIZES = {"background": 3_340_794, "evaluation": 2_415_269}  # bytes


def load_omniglot(
    root: str | os.PathLike[str] | None = None, validation: int | None = None, download: bool = True
) -> Images:
    """Read the first of these files that is found; the training images are in a fixed random order.

    * `chardata.mat`: 24,345 / 8,070 images, the split of Burda, Grosse & Salakhutdinov (2016); no labels.
      Published bounds refer to it.
    * `omniglot_28x28_area.npz`, else `images_{background,evaluation}.npz` (105×105, averaged here):
      19,280 images of the 964 background characters train, 13,180 of the 659 evaluation characters test.
      Labels number the characters from 0 to 1622.
    """
    store = open_store("omniglot", ("omniglot",), root, download)
    labels = None
    if mat := store.find("chardata.mat"):
        pool, test = read_chardata(mat)
    else:
        if area := store.find("omniglot_28x28_area.npz"):
            characters = _read_area(area)
        else:
            remotes = [
                RemoteFile(f"images_{k}.npz", v, (f"{BASE_URL}images_{k}.npz",), SIZES[k])
                for k, v in SHA256.items()
            ]
            paths = [obtain(remote, store, f"{Path(remote.name).stem}_105x105.npz") for remote in remotes]
            characters = [_read_native(path) for path in paths]
        pool, test = (_to_rows(images) for images in characters)
        labels = _number(characters)
    # the stream of RandomState is frozen, that of numpy's newer generators is not
    order = torch.from_numpy(np.random.RandomState(SPLIT_SEED).permutation(len(pool)))
    return split_images(
        "omniglot",
        pool[order],
        test,
        (SIDE, SIDE),
        NUM_VALIDATION if validation is None else validation,
        None if labels is None else (labels[0][order], labels[1]),
    )


def area_average(images: np.ndarray, size: int = SIDE) -> np.ndarray:
    """Mean of each square image over size×size equal cells.  [..., s, s] -> float32 [..., size, size].

    y = W x Wᵀ / s² with whole W[i, j] = |[s·i, s·(i+1)] ∩ [size·j, size·(j+1)]|, so that the sums over
    black-and-white images are exact in float32.
    """
    side = images.shape[-1]
    cell, pixel = side * np.arange(size)[:, None], size * np.arange(side)
    overlap = np.minimum(cell + side, pixel + size) - np.maximum(cell, pixel)
    weight = overlap.clip(min=0).astype(np.float32)
    averaged = np.empty((*images.shape[:-2], size, size), np.float32)
    # one by one along the first axis, because all images as floats would take a gigabyte
    for index, image in enumerate(images):
        averaged[index] = weight @ (image.astype(np.float32) @ weight.T)
    return averaged / np.float32(side * side)


def read_chardata(path: Path) -> tuple[Tensor, Tensor]:
    """`data` and `testdata`, each [784, N] with images in column-major order, as upright rows [N, 784]."""
    # imported here because few need it
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=("data", "testdata"))
        columns = [content[key] for key in ("data", "testdata")]
    except Exception as error:  # scipy raises many kinds on damaged files
        raise DataError(f"{path}: no readable arrays data and testdata ({error!r}); {REMEDY}") from error
    shapes = [array.shape for array in columns]
    if any(len(shape) != 2 or shape[0] != SIDE * SIDE for shape in shapes):
        raise DataError(f"{path}: data and testdata should be [784, N], got {shapes}; {REMEDY}")
    pool, test = (_to_rows(array.reshape(SIDE, SIDE, -1).transpose(2, 1, 0)) for array in columns)
    return pool, test


def _read_area(path: Path) -> list[np.ndarray]:
    """Background and evaluation characters [C, drawers, 28, 28] of a file of bytes, ink = 255."""
    images, background = read_npz(path, "images", "background")
    if images.shape[2:] != (SIDE, SIDE) or images.dtype != np.uint8 or background.shape != images.shape[:1]:
        raise DataError(
            f"{path}: expected uint8 images [C, drawers, 28, 28] and background [C], "
            f"got {images.dtype} {list(images.shape)} and {list(background.shape)}; {REMEDY}"
        )
    return [
        images[flag].astype(np.float32) / 255 for flag in (background.astype(bool), ~background.astype(bool))
    ]


def _read_native(path: Path) -> np.ndarray:
    """Characters [C, drawers, 28, 28] of a file of square black-and-white images, True = paper."""
    (images,) = read_npz(path, "images")
    if images.ndim != 4 or images.shape[2] != images.shape[3] or images.dtype != bool:
        raise DataError(
            f"{path}: expected bool images [C, drawers, s, s], "
            f"got {images.dtype} {list(images.shape)}; {REMEDY}"
        )
    return area_average(~images)


def _to_rows(characters: np.ndarray) -> Tensor:
    """[..., 28, 28] -> [N, 784]."""
    return torch.from_numpy(characters.reshape(-1, SIDE * SIDE).astype(np.float32))


def _number(characters: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Labels of the rows: background characters first, then evaluation, as Omniglot itself numbers them."""
    (known, drawers), (unknown, test_drawers) = (images.shape[:2] for images in characters)
    return (
        torch.arange(known).repeat_interleave(drawers),
        torch.arange(known, known + unknown).repeat_interleave(test_drawers),
    )
