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
from hmcvi.kernels.estimator import Estimator, SeededEstimator
from hmcvi.kernels.hmc import HMC
from hmcvi.kernels.importance import GaussianProposal, ImportanceEstimator, LaplaceProposal
from hmcvi.kernels.kernel import Kernel
from hmcvi.kernels.mass import CholeskyMass, GlobalMass, IdentityMass, LowRankMass, Mass, NetworkMass
from hmcvi.kernels.metrics import CholeskyMetric, DiagonalMetric, IdentityMetric, LowRankMetric, Metric
from hmcvi.kernels.metropolis import Metropolis, ReverseAcceptance
from hmcvi.kernels.momentum import DrawMomentum, DropMomentum, Persistence, RefreshMomentum
from hmcvi.kernels.proposals import IndependentMetropolis, RandomWalkMetropolis
from hmcvi.kernels.pseudo_marginal import (
    AuxiliaryPseudoMarginal,
    AuxiliaryState,
    MetropolisIndependence,
    PseudoMarginalMH,
    apm_mi_mh,
    apm_mi_ss,
    apm_ss_mh,
    apm_ss_ss,
    pm_mh,
)
from hmcvi.kernels.pseudo_marginal_hmc import PseudoMarginalHMC
from hmcvi.kernels.reverse import FlowLaw, GaussianLaw, MixtureLaw, ReverseMomentum, WhiteLaw
from hmcvi.kernels.slice import LinearSlice, ReflectiveSlice
from hmcvi.kernels.step_size import NetworkStepSize, StepSize

__all__ = [
    "HMC",
    "Anneal",
    "AuxiliaryPseudoMarginal",
    "AuxiliaryState",
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
    "Estimator",
    "FlowLaw",
    "GaussianLaw",
    "GaussianProposal",
    "Gibbs",
    "GlobalMass",
    "IdentityMass",
    "IdentityMetric",
    "ImportanceEstimator",
    "IndependentMetropolis",
    "Integers",
    "Kernel",
    "LaplaceProposal",
    "LinearSlice",
    "LowRankMass",
    "LowRankMetric",
    "Mass",
    "Metric",
    "Metropolis",
    "MetropolisIndependence",
    "MixtureLaw",
    "NetworkMass",
    "NetworkStepSize",
    "Persistence",
    "PseudoMarginalHMC",
    "PseudoMarginalMH",
    "RandomWalkMetropolis",
    "ReflectiveSlice",
    "RefreshMomentum",
    "ReverseAcceptance",
    "ReverseMomentum",
    "Schedule",
    "SeededEstimator",
    "SimulatorMetropolis",
    "StepSize",
    "WhiteLaw",
    "abc_mcmc",
    "annealed_chain",
    "apm_mi_mh",
    "apm_mi_ss",
    "apm_ss_mh",
    "apm_ss_ss",
    "flow_hmc_chain",
    "hamiltonian_chain",
    "hvae_chain",
    "hvi_chain",
    "pm_mh",
]
