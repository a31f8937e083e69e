"""Images in npz and npy files."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from hmcvi.data.files import DataError
from hmcvi.data.images import Images
from hmcvi.data.own import Pixels, as_pixels, split_own

SPLITS = ("train", "test", "validation")
KNOWN = (*SPLITS, "images", *(f"{name}_labels" for name in SPLITS), "labels")


def load_arrays(path: Path, validation: int | None = None) -> Images:
    """Arrays `train` and, if there are any, `test`, `validation`, and `train_labels`, … for each.

    path: an npz file, a folder of train.npy, test.npy, …, or one npy file.  A file of one array, `images` or
    the first one, is split at random.  npy files are mapped: float32 is read from the disk as it is needed.
    """
    arrays = _read(path)
    main = next((name for name in ("train", "images", *arrays) if name in arrays), None)
    if main is None or main in KNOWN[1:3] or main.endswith("labels"):
        found = ", ".join(arrays) or "nothing"
        raise DataError(f"{path} must hold an array `train` or `images`, got {found}")
    splits = {name: _pixels(path, arrays, name) for name in (main, "test", "validation")}
    train = splits[main]
    assert train is not None
    return split_own(str(path), train, splits["test"], validation, splits["validation"])


def _pixels(path: Path, arrays: Mapping[str, np.ndarray], name: str) -> Pixels | None:
    if name not in arrays:
        return None
    labels = arrays.get(f"{name}_labels" if name in SPLITS else "labels")
    return as_pixels(arrays[name], f"{path} ({name})", labels, owned=True)


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.is_dir():
        files = {name: path / f"{name}.npy" for name in KNOWN}
        return {name: _load(file)["images"] for name, file in files.items() if file.is_file()}
    return _load(path)


def _load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that may be needed; nothing in it is unpickled."""
    try:
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                # copy on write: a mapped array can be changed, its file cannot
                return {"images": np.load(path, mmap_mode="c", allow_pickle=False)}
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                names = archive.files
                first = [] if {"train", "images"} & {*names} else names[:1]
                return {name: archive[name] for name in names if name in (*KNOWN, *first)}
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; give npz:FILE with an npz or npy file") from None
    except (BadZipFile, zlib.error, EOFError, OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} is no npz or npy file of plain arrays ({error}); save images with numpy.savez"
        ) from error
