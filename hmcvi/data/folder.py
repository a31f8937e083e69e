"""Images in a folder of PNG and JPEG files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hmcvi.data.files import DataError
from hmcvi.data.images import Images
from hmcvi.data.own import TEST_SHARE, Pixels, as_pixels, split_own

SUFFIXES = (".png", ".jpg", ".jpeg")


def load_folder(
    folder: Path, validation: int | None = None, size: int | Sequence[int] | None = None
) -> Images:
    """All PNG and JPEG files in a folder and the folders in it, in grey, of one size.

    size: height and width to which they are resized, or one number for both; None: they have one size.
    The folders `train` and `test` are the splits if there are both; else a file belongs to the test images
    if the hash of its name says so, whatever other files there are.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; give images:FOLDER with PNG or JPEG files in it")
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        train, test = (_files(folder / name) for name in ("train", "test"))
    else:
        files = sorted(_files(folder), key=lambda file: _hash(file, folder))
        cut = max(1, sum(_hash(file, folder) < TEST_SHARE for file in files))
        if len(files) == 1:
            raise DataError(f"{folder} holds one image, which cannot be split in two; add more")
        train, test = files[cut:], files[:cut]
        if not train:
            train, test = test[1:], test[:1]
    pixels = as_pixels(_read([*train, *test], size), str(folder), owned=True)
    rows, shape = pixels.rows, pixels.shape
    return split_own(
        str(folder),
        Pixels(rows[: len(train)], shape, owned=True),
        Pixels(rows[len(train) :], shape, owned=True),
        validation,
    )


def _files(folder: Path) -> list[Path]:
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file() and not path.name.startswith(".")
    )
    if not files:
        raise DataError(f"{folder} holds no images; put files with the endings {', '.join(SUFFIXES)} there")
    return files


def _hash(file: Path, folder: Path) -> float:
    """A number in [0, 1) that depends on the name alone."""
    digest = hashlib.sha256(file.relative_to(folder).as_posix().encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def _read(files: Sequence[Path], size: int | Sequence[int] | None) -> np.ndarray:
    """float32 [N, height, width] in [0, 1]"""
    wanted = None if size is None else _size(size)
    images: np.ndarray | None = None
    for place, file in enumerate(files):
        image = _grey(file, wanted)
        if images is None:
            images = np.empty((len(files), *image.shape), np.float32)
        if image.shape != images.shape[1:]:
            raise DataError(
                f"images have different sizes: {files[0]} is {images.shape[1]}×{images.shape[2]}, {file} is "
                f"{image.shape[0]}×{image.shape[1]}; resize them with data.size=[height,width]"
            )
        np.divide(image, 255, out=images[place])
    assert images is not None
    return images


def _size(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width)"""
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(side, int) and side >= 1 for side in sides):
        raise ValueError(f"size must be a number of pixels or [height, width], got {size!r}")
    return sides[0], sides[1]


def _grey(file: Path, size: tuple[int, int] | None) -> np.ndarray:
    """Grey values in [0, 255], upright.  [height, width]"""
    # imported here because it takes long
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(file) as opened:
            image: Image.Image = ImageOps.exif_transpose(opened)
            # sixteen bits would be cut off at 255
            deep = np.asarray(image, np.float32) / 257 if image.mode.startswith("I") else None
            image = image.convert("L") if deep is None else Image.fromarray(deep)
            if size is not None:
                image = image.resize(size[::-1], Image.Resampling.BILINEAR)
            return np.asarray(image)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{file} is no readable PNG or JPEG image ({' '.join(str(error).split())}); repair or remove it"
        ) from error
