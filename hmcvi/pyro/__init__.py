"""Pyro: guides, kernels, densities and reparameterisations that drop in."""

from hmcvi.pyro.adapter import KernelAdapter
from hmcvi.pyro.amortized import AmortizedHMC
from hmcvi.pyro.compare import compare
from hmcvi.pyro.density import EmbeddedPyroDensity, Prior, PyroDensity, density_from_pyro
from hmcvi.pyro.guide import AutoHMC
from hmcvi.pyro.marginal import integrate_out
from hmcvi.pyro.model_evidence import evidence
from hmcvi.pyro.reparam import AugmentedSoftmax, SimplexReparam
from hmcvi.pyro.semi import AutoSemiHMC
from hmcvi.pyro.tempered_nuts import tempered_nuts
from hmcvi.pyro.vectorized import vectorized_mcmc

__all__ = [
    "AmortizedHMC",
    "AugmentedSoftmax",
    "AutoHMC",
    "AutoSemiHMC",
    "EmbeddedPyroDensity",
    "KernelAdapter",
    "Prior",
    "PyroDensity",
    "SimplexReparam",
    "compare",
    "density_from_pyro",
    "evidence",
    "integrate_out",
    "tempered_nuts",
    "vectorized_mcmc",
]
