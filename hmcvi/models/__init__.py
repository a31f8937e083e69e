"""Models: variational autoencoders whose posteriors chains refine, and generators with random inputs."""

from __future__ import annotations

from typing import Any

from hmcvi.internal.moved import moved
from hmcvi.models.abc import Accepted, Weighted, abc_density, abc_importance, abc_rejection
from hmcvi.models.generator import Generator
from hmcvi.models.inpainting import Inpainting
from hmcvi.models.iwae import load_iwae_npz
from hmcvi.models.vae import VAE, ImportanceEstimate

__all__ = [
    "VAE",
    "Accepted",
    "Generator",
    "ImportanceEstimate",
    "Inpainting",
    "Weighted",
    "abc_density",
    "abc_importance",
    "abc_rejection",
    "load_iwae_npz",
]

# models of the papers' experiments, which live beside them
MOVED = {
    "BoltzmannMachine",
    "MultilevelRegression",
    "PosePrior",
    "Relaxation",
    "generalised_lambda",
    "human_pose",
    "lotka_volterra",
}


def __getattr__(name: str) -> Any:
    return moved(__name__, name, dict.fromkeys(MOVED, "experiments.models"))
