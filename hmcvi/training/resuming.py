"""What a run that goes on may change, and what comes too late."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmcvi.chain import Chain
from hmcvi.data import Images
from hmcvi.internal.storage import digest
from hmcvi.models import VAE
from hmcvi.training.checkpoint import CheckpointError, State, load_weights
from hmcvi.training.config import Config, ConfigError, changed, load_config
from hmcvi.training.state import Cost, stages

OF_OPTIMIZERS = ("train.optimizer", "train.output_lr", "train.weight_decay")  # kept in their state


def goes_on(entry: Mapping[str, Any], config: Config, state: State) -> bool:
    """Whether a finished stage, by its entry in the summary, has more epochs now; only the last one can.

    One that ended early, by train.patience, goes on when there are more than it was to have.
    """
    epochs = {stage.name: stage.epochs for stage in stages(config)}
    had = max(entry["epochs"], state.get("planned_epochs", 0))
    return state["stage"] == entry["name"] and epochs.get(entry["name"], 0) > had


def check_entries(entries: Any) -> None:
    """Refuse, by a ValueError, what are no entries of finished stages."""
    for entry in entries:
        numbers = (entry["bound"], entry["bound_se"], *(entry[name] for name in Cost._fields))
        is_known = entry["name"] in ("vae", "chain")
        if not is_known or not all(number is None or isinstance(number, int | float) for number in numbers):
            raise ValueError("entries of stages without their figures")
        json.dumps(entry)  # which summary.json will hold


def check_data(images: Images, state: State, folder: Path) -> None:
    """Refuse to go on with other training images; checkpoints of earlier versions do not know theirs."""
    if (known := state.get("data")) is not None and known != digest(images.train):
        raise CheckpointError(
            f"the run {folder} was trained on other images than these {len(images.train):,}: set data.* to "
            "those it began with"
        )


def check_architecture(model: VAE, chain: Chain, state: State, source: Path) -> None:
    """Refuse settings of another model than the one that `source` holds."""
    model = copy.deepcopy(model)
    model.chain = chain if state["stage"] == "chain" else model.chain
    load_weights(model, state["model"], source)


def refuse_late(folder: Path, config: Config, state: State, is_finished: bool) -> None:
    """Refuse settings that come too late for the run in `folder`, before it records them as its own."""
    fixed = OF_OPTIMIZERS if state["stage"] == "vae" else (*OF_OPTIMIZERS, "train.freeze")
    for key, (before, now) in changed(load_config(folder / "config.yaml"), config).items():
        if is_finished:
            raise ConfigError(
                f"the run {folder} is finished, and {key}={now} instead of {before} would change nothing: "
                "only evaluate.* can change, or train.epochs to train longer"
            )
        if key in fixed:
            raise ConfigError(
                f"the run {folder} has begun with {key}={before}, got {now}: leave it as it was"
            )
