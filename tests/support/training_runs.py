"""Runs of seconds, for commands that work on a trained model."""

from __future__ import annotations

from pathlib import Path

from hmcvi.training import InterruptGuard, Run, load_config

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = ["train.epochs=3", "model.hidden=[16]", "model.latent_dim=3", "evaluate.num_draws=1"]
SMALL += ["evaluate.nll_samples=0", "evaluate.validation_nll_samples=0"]


def train(folder: Path, name: str, config: str, overrides: list[str]) -> Path:
    """Train folder/name as configs/`config` says, with small networks."""
    run = Run.create(load_config(CONFIGS / config, [*SMALL, *overrides, f"runs={folder}", f"name={name}"]))
    with InterruptGuard() as guard:
        run.train(guard)
    return folder / name


def train_both_likelihoods(folder: Path) -> Path:
    """A folder with a run of each likelihood."""
    train(folder, "gaussian", "gaussian-vae.yaml", [])
    train(folder, "bernoulli", "vae.yaml", [])
    return folder
