"""Variational inference refined by differentiable Hamiltonian Monte Carlo."""

from hmcvi import flows, kernels, models, objectives
from hmcvi.chain import Chain, Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.objectives import Bound, Weights, elbo, iwae

__version__ = "0.1.0"

__all__ = [
    "Bound",
    "Chain",
    "Context",
    "Density",
    "Phase",
    "Step",
    "Transition",
    "Weights",
    "elbo",
    "flows",
    "iwae",
    "kernels",
    "models",
    "objectives",
]
