"""Data sets by name, and the user's own by where they are."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from hmcvi.data.arrays import load_arrays
from hmcvi.data.digits import load_digits
from hmcvi.data.folder import load_folder
from hmcvi.data.function import load_function
from hmcvi.data.images import Images
from hmcvi.data.mnist import load_mnist
from hmcvi.data.mnist_binarized import load_mnist_binarized
from hmcvi.data.omniglot import load_omniglot
from hmcvi.data.own import limited

LOADERS = {
    "digits": load_digits,
    "mnist": load_mnist,
    "mnist_binarized": load_mnist_binarized,
    "omniglot": load_omniglot,
}
OWN = "npz:FILE, images:FOLDER, package.module:function"


def load_images(
    name: str,
    root: str | os.PathLike[str] | None = None,
    validation: int | None = None,
    download: bool = True,
    size: int | Sequence[int] | None = None,
    limit: int | None = None,
) -> Images:
    """One of the data sets "digits", "mnist", "mnist_binarized", "omniglot", or images of your own, split in
    three.

    name: of the data set, or "npz:FILE" for arrays in an npz or npy file, "images:FOLDER" for PNG and JPEG
        files, "package.module:function" for what a function returns; docs/training.md has the layouts.
    root: folder with the files, or with a folder of the data set's name; None for $HMCVI_DATA or else
        ~/.cache/hmcvi. Files found there are used as they are. FILE and FOLDER are looked for in root, or
        else in the current folder.
    download: fetch and verify files that are missing.
    validation: number of training images held out; None for the usual number of the data set, or a tenth of
        your own.
    size: to which the images of a FOLDER are resized, a number or [height, width].
    limit: at most so many training images are used, drawn with a fixed seed.

    >>> images = load_images("digits")
    >>> [tuple(split.shape) for split in (images.train, images.validation, images.test)]
    [(1297, 64), (200, 64), (300, 64)]
    """
    if size is not None and not str(name).startswith("images:"):
        raise ValueError(f"size={size!r} is for images:FOLDER, but the data are {name!r}; leave it null")
    if name in LOADERS:
        return limited(LOADERS[name](root, validation, download), limit)
    kind, colon, place = str(name).partition(":")
    path = Path(root or "").expanduser() / Path(place).expanduser()
    match kind:
        case "npz" if colon:
            images = load_arrays(path, validation)
        case "images" if colon:
            images = load_folder(path, validation, size)
        case _ if colon:
            images = load_function(name, validation)
        case _:
            nearest = difflib.get_close_matches(str(name).lower(), LOADERS, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"unknown data set {name!r}; did you mean {nearest!r}? Known: {', '.join(LOADERS)}; "
                f"your own: {OWN}"
            )
    return limited(images, limit)
