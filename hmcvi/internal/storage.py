"""Files of tensors and numbers: written atomically, read without executing anything."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


class CheckpointError(ValueError):
    """A checkpoint cannot be written or used."""


def save(state: Mapping[str, Any], path: Path) -> None:
    """Write beside `path`, flush to disk, rename: a crash or a full disk leaves the old file whole."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    write_atomically(buffer.getvalue(), path)


def save_json(content: Mapping[str, Any], path: Path) -> None:
    """Write numbers, strings and containers of them as text, atomically."""
    write_atomically((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode(), path)


def write_atomically(content: bytes, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"could not write {path} ({error.strerror}); the last good one is kept"
        ) from error


def load(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The state saved at `path`: tensors, numbers, strings and containers of them, nothing else."""
    try:
        with warnings.catch_warnings():  # of foreign pickle protocols, which are refused anyway
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} is damaged or holds more than tensors and numbers; nothing in it was executed"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        reason = (str(error) or repr(error)).split(". ")[0]
        raise CheckpointError(f"{path} is damaged ({reason}); use an older copy") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a checkpoint of this program")
    return state
