"""Where configurations are found: the user's files, and those that come with the package."""

from __future__ import annotations

import difflib
from pathlib import Path

from hmcvi.training.config import ConfigError

_PACKAGE = Path(__file__).parents[1]
# in a wheel they are part of the package, in a checkout of the repository beside it
SHIPPED = next(folder for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if folder.is_dir())


def shipped_configs() -> list[str]:
    """Names of the configurations that come with the package, such as "hmcvi-mnist" or "table1/hmcvi-08"."""
    return sorted(str(path.relative_to(SHIPPED).with_suffix("")) for path in SHIPPED.rglob("*.yaml"))


def find_config(name: str | Path) -> Path:
    """A file, or else the configuration of that name that comes with the package.

    >>> find_config("hmcvi-mnist").name, find_config("configs/default.yaml").name
    ('hmcvi-mnist.yaml', 'default.yaml')
    """
    path = Path(name).expanduser()
    try:
        if path.exists() and not path.is_dir():
            return path
    except (OSError, ValueError) as error:
        raise ConfigError(f"there is no configuration file {str(name)[:100]}: {error}") from None
    known = shipped_configs()
    wanted = str(Path(*path.parts[1:]) if path.parts[:1] == ("configs",) else path).removesuffix(".yaml")
    if wanted in known:
        return SHIPPED / f"{wanted}.yaml"
    near = difflib.get_close_matches(wanted, known, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"shipped with hmcvi: {', '.join(known)}"
    raise ConfigError(f"there is no configuration file {name}; {hint}")
