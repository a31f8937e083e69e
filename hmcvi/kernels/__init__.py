"""Hamiltonian kernels and steps: metrics, momentum, acceptance, annealing, and the methods built of them."""

from hmcvi.kernels.abc import SimulatorMetropolis, abc_mcmc
from hmcvi.kernels.annealing import Anneal, Schedule
from hmcvi.kernels.builders import (
    annealed_chain,
    flow_hmc_chain,
    hamiltonian_chain,
    hvae_chain,
    hvi_chain,
)
from hmcvi.kernels.compose import Compose, ConditionalDraw, Gibbs
from hmcvi.kernels.constrained import ConstrainedHMC
from hmcvi.kernels.discontinuous import DiscontinuousHMC
from hmcvi.kernels.elliptical import EllipticalSlice
from hmcvi.kernels.embedding import Categorical, Counts, EmbeddedDensity, Embedding, Integers
from hmcvi.kernels.hmc import HMC
from hmcvi.kernels.kernel import Kernel
from hmcvi.kernels.mass import CholeskyMass, GlobalMass, IdentityMass, LowRankMass, Mass, NetworkMass
from hmcvi.kernels.metrics import CholeskyMetric, DiagonalMetric, IdentityMetric, LowRankMetric, Metric
from hmcvi.kernels.metropolis import Metropolis, ReverseAcceptance
from hmcvi.kernels.momentum import DrawMomentum, DropMomentum, Persistence, RefreshMomentum, ReverseMomentum
from hmcvi.kernels.proposals import IndependentMetropolis, RandomWalkMetropolis
from hmcvi.kernels.slice import LinearSlice, ReflectiveSlice
from hmcvi.kernels.step_size import NetworkStepSize, StepSize

__all__ = [
    "HMC",
    "Anneal",
    "Categorical",
    "CholeskyMass",
    "CholeskyMetric",
    "Compose",
    "ConditionalDraw",
    "ConstrainedHMC",
    "Counts",
    "DiagonalMetric",
    "DiscontinuousHMC",
    "DrawMomentum",
    "DropMomentum",
    "EllipticalSlice",
    "EmbeddedDensity",
    "Embedding",
    "Gibbs",
    "GlobalMass",
    "IdentityMass",
    "IdentityMetric",
    "IndependentMetropolis",
    "Integers",
    "Kernel",
    "LinearSlice",
    "LowRankMass",
    "LowRankMetric",
    "Mass",
    "Metric",
    "Metropolis",
    "NetworkMass",
    "NetworkStepSize",
    "Persistence",
    "RandomWalkMetropolis",
    "ReflectiveSlice",
    "RefreshMomentum",
    "ReverseAcceptance",
    "ReverseMomentum",
    "Schedule",
    "SimulatorMetropolis",
    "StepSize",
    "abc_mcmc",
    "annealed_chain",
    "flow_hmc_chain",
    "hamiltonian_chain",
    "hvae_chain",
    "hvi_chain",
]
