"""How a command ends: what may go wrong becomes one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hmcvi.data import DataError
from hmcvi.data.masks import MaskError
from hmcvi.training import CheckpointError, ConfigError, Interrupted

MISTAKES = (CheckpointError, ConfigError, DataError, MaskError)


def explained(error: BaseException) -> str | None:
    """What the machine refused: a file, or memory; None for other errors, which are bugs."""
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "not enough memory: use smaller batches, fewer samples or smaller layers"
    return None


SAVED, STOPPED = "stopped and saved; the same command goes on", "stopped"


def exit_code(
    work: Callable[[], int], saved: Callable[[], str] = lambda: SAVED, stopped: str = STOPPED
) -> int:
    """Its result; 2 after a mistake, which is explained in one line; 130 after Ctrl-C.

    saved, stopped: what to say after an interruption that was waited for, and after one that was not.
    """
    try:
        return work()
    except MISTAKES as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (OSError, MemoryError, RuntimeError) as error:
        if (reason := explained(error)) is None:
            raise
        print(f"error: {reason}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"\n{saved()}", flush=True)
        return stop.exit_code
    except KeyboardInterrupt:
        print(f"\n{stopped}", file=sys.stderr)
        return 130
