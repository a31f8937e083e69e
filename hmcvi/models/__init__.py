"""Models: variational autoencoders whose posteriors chains refine, and generators with random inputs."""

from hmcvi.models import inputs
from hmcvi.models.generator import Generator
from hmcvi.models.vae import VAE, ImportanceEstimate

__all__ = ["VAE", "Generator", "ImportanceEstimate", "inputs"]
