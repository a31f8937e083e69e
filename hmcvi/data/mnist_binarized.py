"""MNIST binarised once by Salakhutdinov & Murray (2008), in the split of Larochelle & Murray (2011)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from hmcvi.data.download import RemoteFile, obtain
from hmcvi.data.files import REMEDY, DataError, open_store, read_npz, unpack
from hmcvi.data.images import Images, split_images

SHAPE = (28, 28)
BASE_URL = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
SHA256 = {
    "train": "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
    "valid": "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
    "test": "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
}
SIZES = {"train": 78_400_000, "valid": 15_680_000, "test": 15_680_000}  # bytes


def load_mnist_binarized(
    root: str | os.PathLike[str] | None = None, validation: int | None = None, download: bool = True
) -> Images:
    """50,000 / 10,000 / 10,000 images 28×28 of 0 and 1, without labels.

    Another `validation` is held out from the end of the training and validation images together.
    """
    store = open_store("mnist_binarized", ("mnist_binarized",), root, download)
    if archive := store.find("binarized_mnist.npz"):
        splits = read_npz(archive, *SHA256)
    else:
        splits = tuple(read_amat(obtain(remote, store, f"{remote.name}.gz")) for remote in _remotes())
    shapes = [images.shape for images in splits]
    if any(len(shape) != 2 or shape[1] != SHAPE[0] * SHAPE[1] for shape in shapes):
        raise DataError(f"{archive}: expected arrays [N, 784], got {shapes}; {REMEDY}")
    train, valid, test = (torch.from_numpy(images.astype(np.float32)) for images in splits)
    held_out = len(valid) if validation is None else validation
    return split_images("mnist_binarized", torch.cat([train, valid]), test, SHAPE, held_out)


def _remotes() -> list[RemoteFile]:
    return [
        RemoteFile(name := f"binarized_mnist_{split}.amat", digest, (BASE_URL + name,), SIZES[split])
        for split, digest in SHA256.items()
    ]


def read_amat(path: Path) -> np.ndarray:
    """Rows of text "0 1 … 0", 784 digits 0 or 1 each, raw or .gz, as uint8 [N, 784]."""
    content, whole = unpack(path)
    text = np.frombuffer(content.replace(b"\r\n", b"\n").rstrip() + b"\n", np.uint8)
    row = 2 * SHAPE[0] * SHAPE[1]
    if text.size % row or not whole:
        cut = "" if whole else ", and its gzip stream is cut off"
        raise DataError(
            f"{path}: expected rows of {row} bytes (784 digits, a blank or line end after each), "
            f"got {text.size} bytes, {text.size % row} too many{cut}; {REMEDY}"
        )
    text = text.reshape(-1, row)
    digits = text[:, ::2] - np.uint8(ord("0"))
    if digits.max() > 1 or (text[:, 1:-1:2] != ord(" ")).any() or (text[:, -1] != ord("\n")).any():
        raise DataError(f"{path}: expected only the digits 0 and 1, a blank or line end after each; {REMEDY}")
    return digits
