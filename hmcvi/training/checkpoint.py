"""Checkpoints of training, and weights that move from one model to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hmcvi.internal.storage import CheckpointError, load, save, write_atomically

__all__ = ["CheckpointError", "load", "load_weights", "save", "write_atomically"]


def load_weights(module: torch.nn.Module, state: Mapping[str, Any], source: object) -> None:
    """Copy weights into a module of the same architecture."""
    try:
        module.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise CheckpointError(
            f"{source} has another architecture: {' '.join(lines[1:3]) or lines[0]} "
            "— use the model and chain settings it was trained with"
        ) from None
