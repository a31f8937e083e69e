"""The rows of Table 1: their names, their configurations, and what the paper measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from hmcvi.models import VAE
from hmcvi.training import Config, ConfigError, load_config
from hmcvi.training.build import build_chain, build_model
from hmcvi.training.checkpoint import load, load_weights
from hmcvi.training.config import parse_config

ROOT = Path(__file__).parents[3]
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
    found = sorted(path.stem for path in CONFIGS.glob("*.yaml") if not path.stem.startswith("base"))
    return [*PUBLISHED, *(name for name in found if name not in PUBLISHED)]


def portable(config: Config) -> dict[str, Any]:
    """The configuration without the folders of this machine."""
    sections = asdict(config)
    source = config.train.init_from
    del sections["runs"], sections["data"]["root"]
    sections["train"]["init_from"] = source and Path(source).name
    return sections


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Row -> result, of the rows that are finished."""
    return {
        row: json.loads(path.read_text()) for row in row_names() if (path := folder / f"{row}.json").exists()
    }


def load_row(row: str, folder: Path) -> VAE:
    """The model of a finished row, from its result and the weights in its run folder."""
    path = folder / f"{row}.json"
    if not path.exists():
        raise ConfigError(f"{path} is missing: train the row first with `hmcvi table1 {row} --out {folder}`")
    config = parse_config(json.dumps(json.loads(path.read_text())["config"]))
    weights = folder / row / ("vae.pt" if config.chain.kind == "none" else "chain.pt")
    state = load(weights)["model"]
    data_dim = state["encoder.net.0.weight"].shape[1]
    chain = build_chain(config.chain, config.model.latent_dim, data_dim)
    model = build_model(config, data_dim, chain)
    load_weights(model, state, weights)
    return model.eval()
