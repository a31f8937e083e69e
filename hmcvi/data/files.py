"""Find data files on disk and read them with errors that name the file."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

REMEDY = "delete the file to have it downloaded again, or replace it by a good copy"


class DataError(ValueError):
    """Data are missing, damaged, no images, or could not be downloaded."""


class Store(NamedTuple):
    """Where the files of one data set are looked for, and where downloads go (None: nowhere)."""

    folders: tuple[Path, ...]
    cache: Path | None

    def find(self, *names: str) -> Path | None:
        """The first existing file of any of these names, or None."""
        candidates = (folder / name for folder in self.folders for name in names)
        return next((path for path in candidates if path.is_file()), None)


def open_store(
    name: str, subfolders: Sequence[str], root: str | os.PathLike[str] | None, download: bool
) -> Store:
    """Look in root and in these subfolders of it; without root, in $HMCVI_DATA or ~/.cache/hmcvi.

    Downloads go to root itself if it was given, otherwise to a folder of the data set's name.
    """
    default = os.environ.get("HMCVI_DATA") or "~/.cache/hmcvi"
    base = Path(default if root is None else root).expanduser()
    cache = base / name if root is None else base
    return Store((base, *(base / sub for sub in subfolders)), cache if download else None)


def unpack(path: Path) -> tuple[bytes, bool]:
    """The contents of a raw or .gz file, and whether a .gz stream reached its end."""
    if path.suffix != ".gz":
        return path.read_bytes(), True
    chunks: list[bytes] = []
    try:
        with gzip.open(path) as stream:
            # read1, unlike read, hands over what comes before a cut
            while chunk := stream.read1(1 << 20):
                chunks.append(chunk)
    except EOFError:
        return b"".join(chunks), False
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path} ({path.stat().st_size} bytes) is no valid gzip file: {error}; {REMEDY}"
        ) from error
    return b"".join(chunks), True


def read_npz(path: Path, *keys: str) -> tuple[np.ndarray, ...]:
    """These arrays of an npz file; nothing in it is unpickled."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return tuple(archive[key] for key in keys)
    except (BadZipFile, zlib.error, EOFError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} ({path.stat().st_size} bytes) is no npz file with {', '.join(keys)}: {error}; {REMEDY}"
        ) from error
