"""The rows of Table 1: their names, their configurations, and what the paper measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from hmcvi.internal.storage import load_json
from hmcvi.training import Config, ConfigError, load_config

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs" / "table1"
RESULTS = ROOT / "results" / "table1"


class Published(NamedTuple):
    """Figures of the paper in nats per image, lower is better."""

    bound: float  # minus the bound
    nll: float


PUBLISHED = {
    "basic-vi-2d": Published(131.76, 128.95),
    "hmcvi-01": Published(130.12, 127.50),
    "hmcvi-02": Published(130.11, 127.54),
    "hmcvi-03": Published(129.78, 127.27),
    "hmcvi-04": Published(129.62, 127.14),
    "hmcvi-05": Published(129.25, 127.03),
    "hmcvi-06": Published(129.59, 127.11),
    "hmcvi-07": Published(129.32, 127.06),
    "hmcvi-08": Published(128.96, 126.94),
    "hmcvi-09": Published(129.93, 127.24),
    "hmcvi-10": Published(129.88, 127.17),
    "basic-vi-20d": Published(92.35, 88.27),
    "hmcvi-11": Published(89.77, 87.77),
    "hmcvi-12": Published(89.83, 87.53),
    "hmcvi-13": Published(90.24, 87.56),
    "hmcvi-14": Published(90.15, 87.49),
    "hmcvi-15": Published(91.08, 87.65),
    "hmcvi-16": Published(90.23, 87.30),
    "hmcvi-17": Published(89.72, 87.44),
    "hmcvi-18": Published(91.40, 87.28),
    "hmcvi-19": Published(91.37, 87.32),
    "hmcvi-20": Published(91.38, 87.20),
}

SIZES = {2: list(PUBLISHED)[:11], 20: list(PUBLISHED)[11:]}  # latents -> rows
MARGINS = {2: 0.3, 20: 0.2}  # nats that our figures may lie above the paper's
TARGETS = {
    row: Published(*(value + MARGINS[size] for value in PUBLISHED[row]))
    for size in SIZES
    for row in SIZES[size]
}


class Question(NamedTuple):
    """A row of our own: what it changes, and the row in which nothing else differs."""

    change: str
    compared: str


QUESTIONS = {
    "question-step-size": Question("a step size for each image", "hmcvi-17"),
    "question-acceptance-gradient": Question("the paper's biased acceptance gradient", "hmcvi-18"),
    "question-reverse-mixture": Question("reverse models: mixtures of five Gaussians", "hmcvi-17"),
    "question-reverse-flow": Question("reverse models: autoregressive flows", "hmcvi-17"),
    "question-iwae": Question("the IWAE bound over five chains", "hmcvi-17"),
}

# rows of the paper that differ in acceptance alone
ACCEPTANCE = {
    "hmcvi-18": Question("acceptance", "hmcvi-13"),
    "hmcvi-19": Question("acceptance, its reverse model learned", "hmcvi-13"),
    "hmcvi-20": Question("acceptance", "hmcvi-16"),
}

# beyond the paper: other chains with as many forces, trained for the same number of epochs
BEYOND = {
    "informed-2d": Question("encoder's coordinates, reverse models that see the force", "hmcvi-08"),
    "annealed-2d": Question("annealed, with such a reversal", "hmcvi-08"),
    "informed-20d": Question("encoder's coordinates, reverse models that see the force", "hmcvi-17"),
    "annealed-20d": Question("annealed, with such a reversal", "hmcvi-17"),
}


def row_config(row: str, out: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a row whose run folder is out/row.

    A refined row starts from the plain VAE of its size in `out`, else from the one its file names.
    """
    path = CONFIGS / f"{row}.yaml"
    if not path.exists():
        raise ConfigError(f"there is no row {row!r}; the rows are {', '.join(row_names())}")
    config = load_config(path, [*overrides, f"runs={out}", f"name={row}"])
    if config.train.init_from is not None:
        own = out / Path(config.train.init_from).name
        config.train.init_from = str(own if (own / "vae.pt").exists() else ROOT / config.train.init_from)
    return config


def row_names() -> list[str]:
    """Those of the paper in its order, then our own."""
    return [*PUBLISHED, *QUESTIONS, *BEYOND]


def portable(config: Config) -> dict[str, Any]:
    """The configuration without the folders of this machine."""
    sections = asdict(config)
    source = config.train.init_from
    del sections["runs"], sections["data"]["root"]
    sections["train"]["init_from"] = source and Path(source).name
    return sections


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Row -> result, of the rows that are finished; "ais" in it is their likelihood by annealing."""
    results = _read(folder)
    for row, likelihood in _read(folder / "ais").items():
        if row in results:
            results[row]["ais"] = likelihood
    return results


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    return {row: load_json(path) for row in row_names() if (path := folder / f"{row}.json").exists()}
