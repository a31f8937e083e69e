"""Images that a function of one's own returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from hmcvi.data.files import DataError
from hmcvi.data.images import Images
from hmcvi.data.own import Pixels, as_pixels, split_own
from hmcvi.internal.imports import current_folder_first, import_object, reason


def load_function(path: str, validation: int | None = None) -> Images:
    """What the function "package.module:function" returns when it is called without arguments.

    Images, or an array, a tensor or a torch Dataset of images or (image, label), or a pair (train, test) of
    those.  It must return the same images whenever it is called.
    """
    try:
        function = import_object(path)
    except ImportError as error:
        raise DataError(str(error)) from error
    if not callable(function):
        raise DataError(f"{path} must be a function that returns images, got {type(function).__name__}")
    try:
        with current_folder_first():
            returned = function()
            train, test, held = _splits(returned, path)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} failed ({reason(error)})") from error
    return split_own(path, train, test, validation, held)


def _splits(returned: Any, path: str) -> tuple[Pixels, Pixels | None, Pixels | None]:
    """Training, test and validation images."""
    if isinstance(returned, Images):
        return _of_images(returned, path)
    if isinstance(returned, tuple | list):
        if len(returned) != 2:
            raise DataError(f"{path} must return images or a pair (train, test), got {len(returned)} parts")
        train, test = (
            _pixels(part, f"{path} ({name})") for part, name in zip(returned, ("train", "test"), strict=True)
        )
        return train, test, None
    return _pixels(returned, path), None, None


def _of_images(images: Images, path: str) -> tuple[Pixels, Pixels | None, Pixels | None]:
    height, width = images.shape
    splits: dict[str, Pixels | None] = {}
    for name in ("train", "test", "validation"):
        rows, labels = getattr(images, name), None if images.labels is None else images.labels[name]
        if len(rows) and rows[0].numel() != height * width:
            raise DataError(f"{path} ({name}): images of shape {images.shape} are rows of {height * width}")
        pixels = as_pixels(rows, f"{path} ({name})", labels) if len(rows) else None
        splits[name] = pixels and pixels._replace(shape=(height, width))
    if (train := splits["train"]) is None:
        raise DataError(f"{path} returned no training images")
    return train, splits["test"], splits["validation"]


def _pixels(part: Any, source: str) -> Pixels:
    if isinstance(part, np.ndarray | Tensor):
        return as_pixels(part, source)
    if hasattr(part, "__getitem__") and hasattr(part, "__len__"):
        return _of_items((part[place] for place in range(len(part))), source)
    if hasattr(part, "__iter__"):
        return _of_items(part, source)
    raise DataError(
        f"{source} must be an array, a tensor or a torch Dataset of images, got {type(part).__name__}"
    )


def _of_items(items: Iterable[Any], source: str) -> Pixels:
    """From images or (image, label, ...)."""
    images: list[np.ndarray] = []
    labels: list[Any] = []
    for item in items:
        image, *rest = item if isinstance(item, tuple | list) else (item,)
        images.append(np.asarray(image))
        labels += rest[:1]
        if images[-1].shape != images[0].shape:
            raise DataError(
                f"{source}: image 0 has shape {list(images[0].shape)}, image {len(images) - 1} "
                f"{list(images[-1].shape)}; give all images one size"
            )
    if not images:
        raise DataError(f"{source} has no images")
    whole = np.asarray(labels)
    known = whole.shape == (len(images),) and whole.dtype.kind in "biu"
    return as_pixels(np.stack(images), source, whole if known else None)
