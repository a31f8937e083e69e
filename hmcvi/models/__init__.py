"""Models: variational autoencoders whose posteriors chains refine, and generators with random inputs."""

from hmcvi.models.abc import Accepted, abc_density, abc_rejection
from hmcvi.models.boltzmann import BoltzmannMachine, Relaxation
from hmcvi.models.generator import Generator
from hmcvi.models.inpainting import Inpainting
from hmcvi.models.iwae import load_iwae_npz
from hmcvi.models.lotka_volterra import lotka_volterra
from hmcvi.models.multilevel import MultilevelRegression
from hmcvi.models.pose import PosePrior, human_pose
from hmcvi.models.quantile import generalised_lambda
from hmcvi.models.vae import VAE, ImportanceEstimate

__all__ = [
    "VAE",
    "Accepted",
    "BoltzmannMachine",
    "Generator",
    "ImportanceEstimate",
    "Inpainting",
    "MultilevelRegression",
    "PosePrior",
    "Relaxation",
    "abc_density",
    "abc_rejection",
    "generalised_lambda",
    "human_pose",
    "load_iwae_npz",
    "lotka_volterra",
]
