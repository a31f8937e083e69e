"""The 8×8 digits bundled with scikit-learn (test part of the UCI optical recognition set)."""

from __future__ import annotations

import os

import numpy as np
import torch

from hmcvi.data.images import Images, split_images

NUM_TEST = 300
NUM_VALIDATION = 200
SPLIT_SEED = 0


def load_digits(
    root: str | os.PathLike[str] | None = None, validation: int | None = None, download: bool = True
) -> Images:
    """1797 images of pixels/16, in a fixed random order; the last 300 are for testing, 200 for validation.

    Needs neither files nor a network, so root and download are not used.
    """
    # imported here because it takes long
    from sklearn import datasets

    bundle = datasets.load_digits()
    # the stream of RandomState is frozen, that of numpy's newer generators is not
    order = np.random.RandomState(SPLIT_SEED).permutation(len(bundle.data))
    pixels = torch.from_numpy(bundle.data[order].astype(np.float32) / 16)
    labels = torch.from_numpy(bundle.target[order].astype(np.int64))
    cut = len(order) - NUM_TEST
    return split_images(
        "digits",
        pixels[:cut],
        pixels[cut:],
        (8, 8),
        NUM_VALIDATION if validation is None else validation,
        (labels[:cut], labels[cut:]),
    )
