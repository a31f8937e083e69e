"""Data sets by name."""

from __future__ import annotations

import difflib
import os

from hmcvi.data.digits import load_digits
from hmcvi.data.images import Images
from hmcvi.data.mnist import load_mnist
from hmcvi.data.mnist_binarized import load_mnist_binarized
from hmcvi.data.omniglot import load_omniglot

LOADERS = {
    "digits": load_digits,
    "mnist": load_mnist,
    "mnist_binarized": load_mnist_binarized,
    "omniglot": load_omniglot,
}


def load_images(
    name: str,
    root: str | os.PathLike[str] | None = None,
    validation: int | None = None,
    download: bool = True,
) -> Images:
    """One of the data sets "digits", "mnist", "mnist_binarized", "omniglot", split in three.

    root: folder with the files, or with a folder of the data set's name; None for $HMCVI_DATA or else
        ~/.cache/hmcvi. Files found there are used as they are.
    download: fetch and verify files that are missing.
    validation: number of training images held out; None for the usual number of the data set.

    >>> images = load_images("digits")
    >>> [tuple(split.shape) for split in (images.train, images.validation, images.test)]
    [(1297, 64), (200, 64), (300, 64)]
    """
    if name not in LOADERS:
        nearest = difflib.get_close_matches(str(name).lower(), LOADERS, n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown data set {name!r}; did you mean {nearest!r}? Known: {', '.join(LOADERS)}")
    return LOADERS[name](root, validation, download)
