"""How a command ends: what may go wrong becomes one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hmcvi.data import DataError
from hmcvi.data.masks import MaskError
from hmcvi.training import CheckpointError, ConfigError, Interrupted

MISTAKES = (CheckpointError, ConfigError, DataError, MaskError)


def exit_code(work: Callable[[], int]) -> int:
    """Its result; 2 after a mistake, which is explained in one line; 130 after Ctrl-C."""
    try:
        return work()
    except MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print("\nstopped and saved; the same command goes on", flush=True)
        return stop.exit_code
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
