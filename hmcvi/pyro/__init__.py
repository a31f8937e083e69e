"""Pyro: guides, kernels and densities that drop in."""

from hmcvi.pyro.density import EmbeddedPyroDensity, PyroDensity, density_from_pyro

__all__ = ["EmbeddedPyroDensity", "PyroDensity", "density_from_pyro"]
