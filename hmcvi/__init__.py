"""Variational inference refined by differentiable Hamiltonian Monte Carlo."""

from hmcvi import evidence, flows, kernels, models, objectives, pyro, sampling
from hmcvi.chain import Chain, Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.objectives import Bound, Weights, elbo, iwae
from hmcvi.sampling import Draws, SamplingWarning, Warmup, sample

__version__ = "0.1.0"

__all__ = [
    "Bound",
    "Chain",
    "Context",
    "Density",
    "Draws",
    "Phase",
    "SamplingWarning",
    "Step",
    "Transition",
    "Warmup",
    "Weights",
    "elbo",
    "evidence",
    "flows",
    "iwae",
    "kernels",
    "models",
    "objectives",
    "pyro",
    "sample",
    "sampling",
]
