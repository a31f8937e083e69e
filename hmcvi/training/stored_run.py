"""Open what was trained: the model with its chain, its images, settings and scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from hmcvi.chain import Chain
from hmcvi.data import Images
from hmcvi.internal.storage import load_json, reading
from hmcvi.models import VAE
from hmcvi.training.build import build_chain, build_model
from hmcvi.training.checkpoint import CheckpointError, load, load_weights
from hmcvi.training.comparison import load_scores
from hmcvi.training.config import GIVEN, Config, ConfigError, load_config, parse_config
from hmcvi.training.load_data import images_of
from hmcvi.training.resuming import check_entries

STAGES = ("chain", "vae")  # the last one first


@dataclass(frozen=True)
class StoredRun:
    """A run whose training has stored weights.

    model: encoder, decoder and chain as the last stage left them, in evaluation mode.
    stage: "chain", or "vae" for a model that is not refined.
    summary: what summary.json says of the test set; empty if training was stopped before.
    images: training, validation and test images, loaded when they are asked for.
    scores: {stage: {"bound": [N], "nll": [N], …}} of each test image.
    """

    folder: Path
    config: Config
    stage: str
    model: VAE
    summary: dict[str, Any]

    @cached_property
    def images(self) -> Images:
        return images_of(self.config.data)

    @cached_property
    def scores(self) -> dict[str, dict[str, Tensor]]:
        found = {stage: self.folder / f"{stage}-scores.pt" for stage in STAGES}
        return {
            stage: {name: value for name, value in load_scores(path).items() if isinstance(value, Tensor)}
            for stage, path in found.items()
            if path.is_file()
        }


def load_run(folder: str | Path, overrides: Sequence[str] = ()) -> StoredRun:
    """Open the folder of a run, or of a result of the repository, such as results/table1/hmcvi-14.

    overrides: settings as key=value in place of the run's own, such as data.root=FOLDER.

        run = hmcvi.load_run("runs/NAME")
        run.model.refine(run.images.test[:10], num_samples=10)
    """
    folder = Path(folder).expanduser()
    return open_stored(folder, stored_config(folder, overrides))


def open_stored(folder: Path, config: Config) -> StoredRun:
    """The run in a folder, with these settings."""
    refuse_given(config, folder)
    stage = next((name for name in STAGES if (folder / f"{name}.pt").is_file()), None)
    if stage is None:
        raise CheckpointError(
            f"{folder} holds no weights (vae.pt or chain.pt): finish its training, "
            f"hmcvi train --resume {folder}"
        )
    return StoredRun(folder, config, stage, _model(config, folder / f"{stage}.pt"), stored_summary(folder))


def refuse_given(config: Config, folder: Path) -> None:
    """No configuration describes the model and the images of a run that `fit` has made."""
    if config.data.name.startswith(f"{GIVEN}:"):
        raise ConfigError(f"{folder} was given its images and model by fit: call it again with them")


def stored_config(folder: Path, overrides: Sequence[str] = ()) -> Config:
    """The settings of a run: config.yaml in its folder, or those in the result FOLDER.json beside it."""
    own, result = folder / "config.yaml", folder.with_name(f"{folder.name}.json")
    if own.is_file():
        try:
            return load_config(own, overrides)
        except ConfigError as error:
            raise ConfigError(f"{own}: {error} (was it written by another version of hmcvi?)") from None
    if not result.exists():
        raise CheckpointError(f"{folder} is not the folder of a run: it holds no config.yaml")
    if (settings := load_json(result).get("config")) is None:
        raise CheckpointError(f"{result} is not the result of a run: it has no config")
    return parse_config(json.dumps(settings), overrides)


def _model(config: Config, path: Path) -> VAE:
    """The model of a configuration with the weights of a file; the images need not be there."""
    stored = load(path)
    weights = stored.get("model")
    if not isinstance(weights, dict):
        raise CheckpointError(f"{path} holds no model")
    data_dim = stored.get("data_dim", _inputs(weights))
    if type(data_dim) is not int or not 0 < data_dim < 10**7 or not all(map(_is_named, weights.items())):
        raise CheckpointError(f"{path} does not hold weights of a model for data of a known size")
    if (stage := stored.get("stage", path.stem)) != path.stem:
        raise CheckpointError(f"{path} holds the weights of the stage {str(stage)[:20]!r}, not its own")
    has_chain = any(name.startswith("chain.") for name in weights)
    chain = build_chain(config.chain, config.model.latent_dim, data_dim) if has_chain else Chain()
    with reading(path):
        shape = stored.get("shape")
        model = build_model(config, data_dim, chain, None if shape is None else tuple(shape))
    load_weights(model, weights, path)
    return model.eval()


def _is_named(weight: tuple[Any, Any]) -> bool:
    return isinstance(weight[0], str) and isinstance(weight[1], Tensor)


def _inputs(weights: dict[str, Any]) -> int | None:
    """The number of inputs of an encoder whose first layer is linear, as those of older files are."""
    first = weights.get("encoder.net.0.weight")
    return first.shape[1] if isinstance(first, Tensor) and first.dim() == 2 else None


def stored_summary(folder: Path) -> dict[str, Any]:
    """What summary.json says of a run, or the result FOLDER.json beside it; empty if there is neither."""
    for path in (folder / "summary.json", folder.with_name(f"{folder.name}.json")):
        if path.is_file():
            summary = load_json(path)
            found = summary if "stages" in summary else {"stages": [summary]}
            with reading(path):
                check_entries(found["stages"])
            return found
    return {}
