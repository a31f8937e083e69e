"""Images of one's own: arrays of any usual layout as rows of pixels, and their splits."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hmcvi.data.files import DataError
from hmcvi.data.images import Images, check_pixels, split_images

TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1
SPLIT_SEED = 0


class Pixels(NamedTuple):
    """One split.  rows: float32 [N, D]; labels: int64 [N]; owned: whether rows may be moved in place."""

    rows: Tensor
    shape: tuple[int, int]
    labels: Tensor | None = None
    owned: bool = False


def as_pixels(
    images: np.ndarray | Tensor,
    source: str,
    labels: np.ndarray | Tensor | None = None,
    owned: bool = False,
) -> Pixels:
    """Images [N, D], [N, H, W] or with one channel as rows; bytes are scaled by 1/255, the rest must lie in
    [0, 1].

    float32 shares the memory of the array, all else is converted into one copy.
    """
    array = _numpy(images)
    if array.ndim == 4 and 1 in (array.shape[1], array.shape[3]):
        array = array.squeeze(1 if array.shape[1] == 1 else 3)
    if array.ndim not in (2, 3) or 0 in array.shape or array.dtype.kind not in "biuf":
        raise DataError(
            f"{source}: images must be numbers [N, D] or grey [N, height, width], "
            f"got {array.dtype} {list(array.shape)}"
        )
    shape = flat_shape(array.shape[1]) if array.ndim == 2 else (array.shape[1], array.shape[2])
    flat = array.reshape(len(array), -1)
    if array.dtype == np.uint8:
        flat = np.divide(flat, np.float32(255), dtype=np.float32)
    flat = flat.astype(np.float32, copy=not flat.flags.writeable)
    rows = torch.from_numpy(flat)
    check_pixels(rows, source)
    owned = owned or not np.may_share_memory(flat, array)
    return Pixels(rows, shape, None if labels is None else _labels(labels, len(rows), source), owned)


def flat_shape(dim: int) -> tuple[int, int]:
    """The shape of images that came as rows: square if it can be, else one line."""
    side = math.isqrt(dim)
    return (side, side) if side * side == dim else (1, dim)


def split_own(
    source: str,
    train: Pixels,
    test: Pixels | None = None,
    validation: int | None = None,
    held: Pixels | None = None,
) -> Images:
    """Test and validation images drawn from the training images with a fixed seed, unless they are given.

    Without test images a fifth is held out; validation: how many of the others are, None for a tenth, or
    held, the images themselves.
    """
    if test is None:
        if len(train.rows) < 2:
            raise DataError(f"{source}: one image cannot be split into training and test images; add more")
        train, test = _split(train, max(1, round(TEST_SHARE * len(train.rows))))
    for other in (test, *([] if held is None else [held])):
        _refuse_other_shape(source, train, other)
    if held is None:
        count = _default_validation(len(train.rows)) if validation is None else validation
        if isinstance(count, int) and 0 < count < len(train.rows):
            train = _random_last(train, count)
        labels = None if train.labels is None or test.labels is None else (train.labels, test.labels)
        return split_images(source, train.rows, test.rows, train.shape, count, labels)
    if validation is not None:
        raise DataError(
            f"{source} has validation images of its own, got validation={validation}; leave it null"
        )
    splits = {"train": train, "validation": held, "test": test}
    named = {name: split.labels for name, split in splits.items() if split.labels is not None}
    return Images(train.rows, held.rows, test.rows, named if len(named) == 3 else None, train.shape)


def limited(images: Images, limit: int | None) -> Images:
    """At most `limit` of the training images, drawn with a fixed seed."""
    if limit is None or limit >= len(images.train):
        return images
    if limit < 1:
        raise ValueError(f"limit must be at least 1 training image, got {limit}")
    kept = torch.from_numpy(_order(len(images.train))[:limit]).sort().values
    labels = images.labels and {**images.labels, "train": images.labels["train"][kept]}
    return images._replace(train=images.train[kept], labels=labels)


def _numpy(images: np.ndarray | Tensor) -> np.ndarray:
    if not isinstance(images, Tensor):
        return np.asarray(images)
    images = images.detach().cpu()
    return (images.float() if images.dtype == torch.bfloat16 else images).numpy()


def _labels(labels: np.ndarray | Tensor, number: int, source: str) -> Tensor:
    array = _numpy(labels)
    if array.shape != (number,) or array.dtype.kind not in "biu":
        raise DataError(
            f"{source}: labels must be whole numbers [{number}], one for each image, "
            f"got {array.dtype} {list(array.shape)}"
        )
    return torch.from_numpy(array.astype(np.int64))


def _default_validation(number: int) -> int:
    return max(1, int(VALIDATION_SHARE * number)) if number > 1 else 0


def _order(number: int) -> np.ndarray:
    # the stream of RandomState is frozen, that of numpy's newer generators is not
    return np.random.RandomState(SPLIT_SEED).permutation(number)


def _split(pixels: Pixels, count: int) -> tuple[Pixels, Pixels]:
    """All but `count` random images, and those."""
    rows, shape, labels, owned = _random_last(pixels, count)
    first, last = (None, None) if labels is None else (labels[:-count], labels[-count:])
    return Pixels(rows[:-count], shape, first, owned), Pixels(rows[-count:], shape, last, owned)


def _random_last(pixels: Pixels, count: int) -> Pixels:
    """The images with `count` random ones moved to the end.

    Few rows move, so that most pages of a memory-mapped file stay as they are and are never held in memory.
    """
    chosen = torch.from_numpy(_order(len(pixels.rows))[:count])
    rows = pixels.rows if pixels.owned else pixels.rows.clone()
    _move_to_end_(rows, chosen)
    labels = None if pixels.labels is None else pixels.labels.clone()
    if labels is not None:
        _move_to_end_(labels, chosen)
    return Pixels(rows, pixels.shape, labels, owned=True)


def _move_to_end_(values: Tensor, chosen: Tensor) -> None:
    """Exchange rows so that the chosen ones are the last.  values: [N, ...]; chosen: [n]"""
    cut = len(values) - len(chosen)
    tail = torch.arange(cut, len(values))
    moved = values[chosen]
    values[chosen[chosen < cut]] = values[tail[~torch.isin(tail, chosen)]]
    values[cut:] = moved


def _refuse_other_shape(source: str, train: Pixels, other: Pixels) -> None:
    dim = train.rows.shape[1]
    # images that came as rows have no shape of their own
    if other.rows.shape[1] != dim or other.shape not in (train.shape, flat_shape(dim)):
        raise DataError(
            f"{source}: training images are {train.shape[0]}×{train.shape[1]}, others {other.shape[0]}×"
            f"{other.shape[1]}; give all images one size"
        )
