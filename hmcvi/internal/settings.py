"""Settings and states as plain dicts of tensors and numbers, which a file can hold."""

from __future__ import annotations

import dataclasses
import hashlib
import operator
from collections.abc import Callable, Iterable
from numbers import Integral
from types import FunctionType
from typing import Any

from torch import Tensor


def as_plain(setting: Any) -> Any:
    """A setting as a file can hold it: tensors and numbers, a dataclass as its name and fields.

    Counts of other libraries, such as numpy integers, become Python's.
    """
    if dataclasses.is_dataclass(setting):
        fields = {f.name: getattr(setting, f.name) for f in dataclasses.fields(setting) if f.init}
        return {"type": type(setting).__name__, **fields}
    return setting if isinstance(setting, Tensor | float | None) else operator.index(setting)


def from_plain(saved: Any, known: Iterable[type]) -> Any:
    """The inverse of `as_plain`; a dataclass is one of the `known`, by its name (if saved) and fields."""
    if not isinstance(saved, dict):
        return saved
    fields = {name: value for name, value in saved.items() if name != "type"}
    for kind in known:
        names = {field.name for field in dataclasses.fields(kind) if field.init}
        if kind.__name__ == saved.get("type", kind.__name__) and names == fields.keys():
            return kind(**fields)
    raise KeyError(f"no {saved.get('type', 'object')} with {', '.join(fields) or 'no fields'}")


def state_dict(state: Any) -> Any:
    """A named tuple of tensors, None and further named tuples as a dict."""
    return {n: state_dict(v) for n, v in state._asdict().items()} if hasattr(state, "_asdict") else state


def restored(template: Any, saved: Any) -> Any:
    """The inverse of `state_dict`: a state of the same type as `template`."""
    if not isinstance(saved, dict):
        return saved
    return type(template)(**{name: restored(getattr(template, name), v) for name, v in saved.items()})


def fingerprint(*values: Any, unseen: Callable[[Any], bool] = lambda value: False) -> str:
    """A hash of settings, equal for equal ones; functions and `unseen` objects count by their type alone."""
    return hashlib.sha256(repr([_described(value, unseen) for value in values]).encode()).hexdigest()


def _described(value: Any, unseen: Callable[[Any], bool]) -> Any:
    match value:
        case Tensor():
            return str(value.dtype), value.tolist()
        case tuple() | list():
            return [_described(entry, unseen) for entry in value]
        case bool() | float() | str() | slice() | None:
            return value
        case Integral():
            return int(value)
    if unseen(value) or not hasattr(value, "__dict__") or isinstance(value, FunctionType):
        return type(value).__name__
    parts = {n: _described(v, unseen) for n, v in sorted(vars(value).items()) if not n.startswith("_")}
    return type(value).__name__, parts
