"""Models whose posteriors chains refine."""

from hmcvi.models.vae import VAE, ImportanceEstimate

__all__ = ["VAE", "ImportanceEstimate"]
