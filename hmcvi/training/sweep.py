"""The same training with several values of some settings: a run for each combination."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hmcvi.internal.processes import ALONE, Processes
from hmcvi.training.config import Config, ConfigError, changed, load_config
from hmcvi.training.run import Run


class Point(NamedTuple):
    """One combination of values."""

    overrides: tuple[str, ...]  # key=value

    @property
    def suffix(self) -> str:
        """What tells its run from the others, fit for the name of a folder."""
        parts = (override.partition("=") for override in self.overrides)
        return "".join(f"-{key.rpartition('.')[2]}={_plain(value)}" for key, _, value in parts)


def _plain(value: str) -> str:
    """Letters, digits and what is harmless in the name of a folder."""
    return re.sub(r"[^\w.+-]+", "_", value).strip("_")


def points(sweeps: Sequence[str]) -> list[Point]:
    """All combinations of the values of KEY=A,B,…; a list in brackets is one value.

    >>> [point.overrides for point in points(["train.lr=1e-3,3e-3", "model.hidden=[50],[200,200]"])][:2]
    [('train.lr=1e-3', 'model.hidden=[50]'), ('train.lr=1e-3', 'model.hidden=[200,200]')]
    >>> points(["chain.num_hmc=1,3"])[1].suffix
    '-num_hmc=3'
    """
    axes = []
    for sweep in sweeps:
        key, _, values = sweep.partition("=")
        found = [value.strip() for value in re.split(r",(?![^\[]*\])", values)]
        if not key or not all(found):
            raise ConfigError(f"--sweep takes KEY=A,B,…, such as --sweep chain.num_hmc=1,3, got {sweep!r}")
        if len(set(found)) < len(found):
            raise ConfigError(f"the values of a sweep must differ, got {sweep!r}")
        if key in ("name", "runs", "seed"):
            raise ConfigError(f"{key} cannot be swept" + ("; use seeds=0,1,2" if key == "seed" else ""))
        axes.append([f"{key}={value}" for value in found])
    return [Point(combination) for combination in itertools.product(*axes)]


def begin_or_go_on(config: Config, processes: Processes = ALONE) -> Run:
    """A run by its name: new, or going on where it stands, if its settings are the same."""
    assert config.name is not None
    folder = Path(config.runs).expanduser() / config.name
    if not processes.broadcast((folder / "checkpoint.pt").exists()):
        return Run.create(config, processes)
    for key, (before, now) in changed(load_config(folder / "config.yaml"), config).items():
        raise ConfigError(
            f"the run {folder} was trained with {key}={before}, got {now}: runs with other settings need "
            "another name=..."
        )
    return Run.resume(folder, processes=processes, config=config)
