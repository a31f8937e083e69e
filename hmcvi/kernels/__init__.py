"""Kernels for MCMC, steps for variational chains, and the methods built from them."""

from __future__ import annotations

from typing import Any

from hmcvi.dynamics.metrics import (
    CholeskyMetric,
    DiagonalMetric,
    IdentityMetric,
    LowRankMetric,
    Metric,
    SpectralMetric,
)
from hmcvi.dynamics.riemannian import GaussNewtonMetric
from hmcvi.internal.moved import moved
from hmcvi.kernels.constrained.kernel import ConstrainedHMC
from hmcvi.kernels.mcmc.compose import Compose
from hmcvi.kernels.mcmc.discontinuous import DiscontinuousHMC
from hmcvi.kernels.mcmc.elliptical import EllipticalSlice
from hmcvi.kernels.mcmc.embedding import Categorical, Counts, EmbeddedDensity, Embedding, Integers
from hmcvi.kernels.mcmc.event_driven import EventDrivenHMC
from hmcvi.kernels.mcmc.factored import FactoredDensity
from hmcvi.kernels.mcmc.gibbs import ConditionalDraw, Gibbs
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Kernel
from hmcvi.kernels.mcmc.metropolis import IndependentMetropolis, RandomWalkMetropolis
from hmcvi.kernels.mcmc.riemannian import RiemannianHMC
from hmcvi.kernels.mcmc.slice import LinearSlice, ReflectiveSlice
from hmcvi.kernels.pseudo_marginal.estimators import Estimator, SeededEstimator
from hmcvi.kernels.pseudo_marginal.hmc import PseudoMarginalHMC
from hmcvi.kernels.pseudo_marginal.importance import GaussianProposal, ImportanceEstimator, LaplaceProposal
from hmcvi.kernels.pseudo_marginal.intervals import IntervalMetropolis
from hmcvi.kernels.pseudo_marginal.kernels import (
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
from hmcvi.kernels.pseudo_marginal.simulator import SimulatorMetropolis, abc_mcmc
from hmcvi.kernels.variational.acceptance import Metropolis, ReverseAcceptance
from hmcvi.kernels.variational.annealing import Anneal, Schedule
from hmcvi.kernels.variational.builders import (
    annealed_chain,
    flow_hmc_chain,
    hamiltonian_chain,
    hvae_chain,
    hvi_chain,
)
from hmcvi.kernels.variational.langevin import Control, Langevin
from hmcvi.kernels.variational.langevin_builders import langevin_chain, stochastic_flow_chain
from hmcvi.kernels.variational.mass import (
    CholeskyMass,
    GlobalMass,
    IdentityMass,
    LowRankMass,
    Mass,
    NetworkMass,
)
from hmcvi.kernels.variational.momentum import DrawMomentum, DropMomentum, Persistence, RefreshMomentum
from hmcvi.kernels.variational.resampling import Resample
from hmcvi.kernels.variational.reverse import (
    FlowMomentum,
    GaussianMomentum,
    MixtureMomentum,
    MomentumModel,
    ReverseMomentum,
)
from hmcvi.kernels.variational.step_size import NetworkStepSize, StepSize

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
    "Control",
    "Counts",
    "DiagonalMetric",
    "DiscontinuousHMC",
    "DrawMomentum",
    "DropMomentum",
    "EllipticalSlice",
    "EmbeddedDensity",
    "Embedding",
    "Estimator",
    "EventDrivenHMC",
    "FactoredDensity",
    "FlowMomentum",
    "GaussNewtonMetric",
    "GaussianMomentum",
    "GaussianProposal",
    "Gibbs",
    "GlobalMass",
    "IdentityMass",
    "IdentityMetric",
    "ImportanceEstimator",
    "IndependentMetropolis",
    "Integers",
    "IntervalMetropolis",
    "Kernel",
    "Langevin",
    "LaplaceProposal",
    "LinearSlice",
    "LowRankMass",
    "LowRankMetric",
    "Mass",
    "Metric",
    "Metropolis",
    "MetropolisIndependence",
    "MixtureMomentum",
    "MomentumModel",
    "NetworkMass",
    "NetworkStepSize",
    "Persistence",
    "PseudoMarginalHMC",
    "PseudoMarginalMH",
    "RandomWalkMetropolis",
    "ReflectiveSlice",
    "RefreshMomentum",
    "Resample",
    "ReverseAcceptance",
    "ReverseMomentum",
    "RiemannianHMC",
    "Schedule",
    "SeededEstimator",
    "SimulatorMetropolis",
    "SpectralMetric",
    "StepSize",
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
    "langevin_chain",
    "pm_mh",
    "stochastic_flow_chain",
]

# of the first release
OLD_NAMES = {
    "FlowLaw": "hmcvi.kernels:FlowMomentum",
    "GaussianLaw": "hmcvi.kernels:GaussianMomentum",
    "MixtureLaw": "hmcvi.kernels:MixtureMomentum",
    "WhiteLaw": "hmcvi.kernels:MomentumModel",
}


def __getattr__(name: str) -> Any:
    return moved(__name__, name, OLD_NAMES)
