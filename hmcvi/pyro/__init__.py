"""Pyro: guides, kernels and densities that drop in."""

from hmcvi.pyro.amortized import AmortizedHMC
from hmcvi.pyro.density import EmbeddedPyroDensity, PyroDensity, density_from_pyro
from hmcvi.pyro.guide import AutoHMC

__all__ = ["AmortizedHMC", "AutoHMC", "EmbeddedPyroDensity", "PyroDensity", "density_from_pyro"]
