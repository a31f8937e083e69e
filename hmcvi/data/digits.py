"""8×8 digits that come with the package (test part of the UCI optical recognition set, CC BY 4.0)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from hmcvi.data.images import Images, split_images

FILE = Path(__file__).with_name("digits.npz")  # uint8, pixels from 0 to 16
NUM_TEST = 300
NUM_VALIDATION = 200
SPLIT_SEED = 0


def load_digits(
    root: str | os.PathLike[str] | None = None, validation: int | None = None, download: bool = True
) -> Images:
    """1797 images of pixels/16, in a fixed random order; the last 300 are for testing, 200 for validation.

    Needs neither files nor a network, so root and download are not used.
    """
    with np.load(FILE) as bundle:
        data, target = bundle["pixels"], bundle["labels"]
    # the stream of RandomState is frozen, that of numpy's newer generators is not
    order = np.random.RandomState(SPLIT_SEED).permutation(len(data))
    pixels = torch.from_numpy(data[order].astype(np.float32) / 16)
    labels = torch.from_numpy(target[order].astype(np.int64))
    cut = len(order) - NUM_TEST
    return split_images(
        "digits",
        pixels[:cut],
        pixels[cut:],
        (8, 8),
        NUM_VALIDATION if validation is None else validation,
        (labels[:cut], labels[cut:]),
    )
