"""The weights of a row, out/row/vae.pt or chain.pt: load them, evaluate them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.table1.rows import portable, row_config
from hmcvi.data import load_images
from hmcvi.internal.processes import ALONE, Processes
from hmcvi.internal.storage import load_json
from hmcvi.models import VAE
from hmcvi.training import Config, InterruptGuard
from hmcvi.training.build import build_chain, build_model
from hmcvi.training.checkpoint import CheckpointError, load, load_weights, save
from hmcvi.training.config import parse_config
from hmcvi.training.evaluation import TEST_SEED, Scores, evaluate

UNKNOWN = {"epochs": None, "best_epoch": None, "seconds": None, "cpu_seconds": None}


def stage_of(config: Config) -> str:
    """The last stage of a run, which its weights and scores are named after."""
    return "vae" if config.chain.kind == "none" else "chain"


def stored_config(row: str, out: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in the result of a row, else that of its file."""
    path = out / f"{row}.json"
    if not path.exists():
        return row_config(row, out, overrides)
    return parse_config(json.dumps(load_json(path).get("config")), overrides)


def has_weights(row: str, out: Path) -> bool:
    return (out / row / f"{stage_of(stored_config(row, out))}.pt").exists()


def load_row(row: str, out: Path, overrides: Sequence[str] = ()) -> VAE:
    """The model of a row, from the weights in its run folder."""
    config = stored_config(row, out, overrides)
    path = out / row / f"{stage_of(config)}.pt"
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing: train the row with `python -m experiments table1 {row} --out {out}`"
        )
    state = load(path)["model"]
    data_dim = state["encoder.net.0.weight"].shape[1]
    chain = build_chain(config.chain, config.model.latent_dim, data_dim)
    model = build_model(config, data_dim, chain)
    load_weights(model, state, path)
    return model.eval()


def halve_row(row: str, out: Path) -> None:
    """Store the matrices of a row in half precision, eleven bits each; loading makes them single again."""
    path = out / row / f"{stage_of(stored_config(row, out))}.pt"
    stored = load(path)
    matrices = {v.data_ptr(): v.half() for v in stored["model"].values() if v.dim() > 1}  # steps share some
    stored["model"] = {name: matrices.get(v.data_ptr(), v) for name, v in stored["model"].items()}
    if not all(value.isfinite().all() for value in stored["model"].values()):
        raise CheckpointError(f"{path} has weights beyond the range of half precision")
    save(stored, path)


def score_row(
    row: str,
    out: Path,
    guard: InterruptGuard,
    overrides: Sequence[str] = (),
    processes: Processes = ALONE,
    seed: int = TEST_SEED,
) -> Scores:
    """Bound and NLL on the test set of the stored weights."""
    config = stored_config(row, out, overrides)
    model = load_row(row, out, overrides).to(config.train.device)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    with processes.in_turn():
        images = load_images(config.data.name, config.data.root, config.data.validation, config.data.download)
    unfinished = out / row / f"{stage_of(config)}-scores-of-seed-{seed}.pt"
    return evaluate(model, images.test, config, guard, unfinished, processes, seed)


def result_of_weights(
    row: str,
    out: Path,
    guard: InterruptGuard,
    overrides: Sequence[str] = (),
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """The result of a row whose weights are there; what training cost is known if they say so."""
    config = stored_config(row, out, overrides)
    stage = stage_of(config)
    scores = score_row(row, out, guard, overrides, processes)
    if processes.first:
        scores.save(out / row / f"{stage}-scores.pt")
    cost = load(out / row / f"{stage}.pt").get("cost", UNKNOWN)
    return {"row": row, "name": stage, **scores.summary, **cost, "config": portable(config)}
