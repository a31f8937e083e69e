"""Names that moved, still available at their old address."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def moved(module: str, name: str, homes: Mapping[str, str]) -> Any:
    """Look `name` up in the module it moved to, for the `__getattr__` of the module it was in.

    homes: {name: "package.module"}, or {old name: "package.module:new name"}.
    """
    if name not in homes:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    home, _, new = homes[name].partition(":")
    try:
        return getattr(importlib.import_module(home), new or name)
    except ModuleNotFoundError as error:
        if not f"{home}.".startswith(f"{error.name}."):  # something that the home itself needs
            raise
        raise ImportError(
            f"{module}.{name} is not part of the installed package: it is {home}.{new or name} in a checkout "
            "of the repository; run Python there"
        ) from None
