"""Layers of settings as text, read in bounded time: what is not plain YAML is refused before it is built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from hmcvi.training.config_checks import ConfigError

LARGEST = 100_000  # bytes of a file
DEEPEST = 8  # lists and sections within one another, and files that build on one another


def read_layers(path: Path, above: tuple[Path, ...] = ()) -> list[DictConfig]:
    """The settings of a file, after those of the file that its `base:` names."""
    if path.resolve() in above or len(above) > DEEPEST:
        raise ConfigError(f"{above[0]} is built on itself: its base leads back to {path}")
    layer = parse_layer(_text(path), str(path))
    base = layer.pop("base", None)
    if base is None:
        return [layer]
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base must be the name of a file, got {base}")
    return [*read_layers(path.parent / base, (*above, path.resolve())), layer]


def parse_overrides(overrides: Sequence[str]) -> Iterator[DictConfig]:
    """A layer for each key=value."""
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"expected key=value, got {_short(override)}")
        source = _short(override)
        _refuse_unbounded(value, source)
        if key.count(".") + key.count("[") > DEEPEST:
            raise ConfigError(f"unknown configuration key in {source}")
        try:
            layer = OmegaConf.from_dotlist([override])
        except Exception as error:  # of keys and values that are none, whatever OmegaConf and YAML raise
            raise ConfigError(f"cannot read {source}: {_reason(error)}") from None
        yield _plain(layer, source)


def parse_layer(text: str, source: str) -> DictConfig:
    """Settings in YAML or JSON."""
    _refuse_unbounded(text, source)
    try:
        layer = OmegaConf.create(text)
    except Exception as error:
        raise ConfigError(f"cannot read {source}: {_reason(error)}") from None
    if not isinstance(layer, DictConfig):
        raise ConfigError(f"{source} must hold sections of key: value pairs")
    return _plain(layer, source)


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"cannot read {path}: it is not a file")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ConfigError(f"cannot read {path}: it has more than {LARGEST:,} bytes")
        return content.decode()
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot read {path}: {_reason(error)}") from None


def _refuse_unbounded(text: str, source: str) -> None:
    """Refuse aliases, which may repeat themselves without end, and what is too large or too deep."""
    if len(text) > LARGEST:
        raise ConfigError(f"{source} has more than {LARGEST:,} characters")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ConfigError(f"cannot read {source}: aliases such as *{event.anchor} are not allowed")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            if isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEEPEST:
                raise ConfigError(f"cannot read {source}: more than {DEEPEST} levels of lists and sections")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot read {source}: {_reason(error)}") from None


def _plain(layer: DictConfig, source: str) -> DictConfig:
    """The layer, refused if a value of it is a reference or missing, which would be looked up later."""
    for value in _values(OmegaConf.to_container(layer, resolve=False)):
        if isinstance(value, str) and ("${" in value or value == "???"):
            what = "is missing" if value == "???" else "refers to another: write the value itself"
            raise ConfigError(f"a value of {source} {what}, got {_short(value)}")
    return layer


def _values(node: Any) -> Iterator[Any]:
    """Keys and values of sections, entries of lists, all levels."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield key
            yield from _values(value)
    elif isinstance(node, list):
        for value in node:
            yield from _values(value)
    else:
        yield node


def _short(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:80]}…")


def _reason(error: Exception) -> str:
    """The last line of an error of YAML says where, the first what."""
    problem = getattr(error, "problem", None)
    return str(problem or error or type(error).__name__).splitlines()[0][:200]
