"""Objects of the user's own, by the path package.module:name."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def import_object(path: str) -> Any:
    """The object "package.module:name"; modules of the current folder are found too."""
    module, _, name = path.partition(":")
    try:
        with current_folder_first():
            found = importlib.import_module(module)
    except Exception as error:
        raise ImportError(
            f"cannot import {module!r} of {path!r} ({reason(error)}); give package.module:name, "
            f"installed or in the folder {os.getcwd()}"
        ) from error
    if not hasattr(found, name):
        near = difflib.get_close_matches(name, dir(found), 1)
        hint = f"did you mean {near[0]!r}?" if near else "give package.module:name"
        raise ImportError(f"the module {module!r} of {path!r} has no {name!r}; {hint}")
    return getattr(found, name)


@contextmanager
def current_folder_first() -> Iterator[None]:
    """Within it modules of the current folder can be imported, as in `python -c`."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def reason(error: Exception) -> str:
    """An error in one line: its type, its message, and the line of the user's code that raised it."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith("<") and "importlib" not in f.filename]
    place = f", {Path(own[-1].filename).name} line {own[-1].lineno}" if own[1:] else ""
    return f"{type(error).__name__}: {message}{place}"
