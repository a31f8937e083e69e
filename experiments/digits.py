"""A small variational autoencoder for experiments whose users bring none."""

from __future__ import annotations

from pathlib import Path

from hmcvi.training import InterruptGuard, Run, load_config

CONFIGS = Path(__file__).parents[1] / "configs"
QUICK_EPOCHS = 5


def trained_on_digits(config: str, out: Path, seed: int, quick: bool) -> Path:
    """The folder out/vae of a run of configs/`config`; trained, or trained to its end, if it is not yet."""
    folder = out / "vae"
    if not (folder / "vae.pt").exists():
        overrides = [f"runs={out}", "name=vae", f"seed={seed}", "evaluate.nll_samples=0"]
        overrides += [f"train.epochs={QUICK_EPOCHS}"] if quick else []
        begun = (folder / "checkpoint.pt").exists()
        run = Run.resume(folder) if begun else Run.create(load_config(CONFIGS / config, overrides))
        with InterruptGuard() as guard:
            run.train(guard)
    return folder
