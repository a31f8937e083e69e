"""MNIST (LeCun, Cortes & Burges 1998) in its idx files."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hmcvi.data.download import RemoteFile, obtain
from hmcvi.data.files import REMEDY, DataError, Store, open_store, unpack
from hmcvi.data.images import Images, split_images

NUM_VALIDATION = 10_000
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
SIZES = {
    "train-images-idx3-ubyte": 9912422,
    "train-labels-idx1-ubyte": 28881,
    "t10k-images-idx3-ubyte": 1648877,
    "t10k-labels-idx1-ubyte": 4542,
}
UNPACKED = {
    "train-images-idx3-ubyte": (
        47040016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    "t10k-images-idx3-ubyte": (7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "t10k-labels-idx1-ubyte": (10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
}


def load_mnist(
    root: str | os.PathLike[str] | None = None, validation: int | None = None, download: bool = True
) -> Images:
    """60,000 + 10,000 images 28×28 of pixels/255; the last 10,000 training images are for validation."""
    store = open_store("mnist", ("mnist", "MNIST/raw"), root, download)
    images, labels = _read_pair(store, "train")
    test_images, test_labels = _read_pair(store, "t10k")
    if images.shape[1:] != test_images.shape[1:]:
        raise DataError(
            f"mnist: training images are {images.shape[1:]} but test images {test_images.shape[1:]}; "
            "use the four files of one data set"
        )
    return split_images(
        "mnist",
        _to_pixels(images),
        _to_pixels(test_images),
        (images.shape[1], images.shape[2]),
        NUM_VALIDATION if validation is None else validation,
        (torch.from_numpy(labels.astype(np.int64)), torch.from_numpy(test_labels.astype(np.int64))),
    )


def _read_pair(store: Store, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    image_path, label_path = (
        _locate(store, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")
    )
    images, labels = read_idx(image_path, ndim=3), read_idx(label_path, ndim=1)
    if len(images) != len(labels):
        raise DataError(
            f"{image_path} has {len(images)} images but {label_path} has {len(labels)} labels; "
            "use two files of the same data set"
        )
    return images, labels


def _locate(store: Store, stem: str) -> Path:
    name, urls = f"{stem}.gz", tuple(f"{mirror}{stem}.gz" for mirror in MIRRORS)
    return obtain(RemoteFile(name, SHA256[stem], urls, SIZES[stem], UNPACKED[stem]), store, stem)


def _to_pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images.reshape(len(images), -1).astype(np.float32)).div_(255)


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """The unsigned bytes of an idx file, raw or .gz, as an array of ndim dimensions.

    Layout: bytes 0, 0, 8 (unsigned byte), ndim; ndim sizes as big-endian uint32; values, last axis fastest.
    """
    content, whole = unpack(path)
    magic, start = bytes((0, 0, 8, ndim)), 4 + 4 * ndim
    if content[:4] != magic[: len(content)]:
        raise DataError(
            f"{path}: expected the magic number 0x{magic.hex()} of an idx file of {ndim} dimensions, "
            f"got 0x{content[:4].hex()}; {REMEDY}"
        )
    sizes = struct.unpack(f">{ndim}I", content[4:start]) if len(content) >= start else ()
    expected = start + math.prod(sizes) if sizes else start
    if len(content) != expected or not whole:
        cut = "" if whole else ", and its gzip stream is cut off"
        raise DataError(
            f"{path}: expected {expected} bytes of sizes {sizes}, got {len(content)}{cut}; {REMEDY}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
