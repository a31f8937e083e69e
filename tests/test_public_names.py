"""Every public name of the first release is still found at its address."""

from __future__ import annotations

import importlib

import pytest

NAMES = {
    "hmcvi": """
        Bound Chain Context Density Draws Phase SamplingWarning Step Transition Warmup Weights elbo
        evidence flows iwae kernels models objectives pyro sample sampling
    """,
    "hmcvi.kernels": """
        Anneal AuxiliaryPseudoMarginal AuxiliaryState Categorical CholeskyMass CholeskyMetric
        Compose ConditionalDraw ConstrainedHMC Counts DiagonalMetric DiscontinuousHMC DrawMomentum
        DropMomentum EllipticalSlice EmbeddedDensity Embedding Estimator FlowLaw GaussianLaw
        GaussianProposal Gibbs GlobalMass HMC IdentityMass IdentityMetric ImportanceEstimator
        IndependentMetropolis Integers Kernel LaplaceProposal LinearSlice LowRankMass LowRankMetric
        Mass Metric Metropolis MetropolisIndependence MixtureLaw NetworkMass NetworkStepSize
        Persistence PseudoMarginalHMC PseudoMarginalMH RandomWalkMetropolis ReflectiveSlice
        RefreshMomentum ReverseAcceptance ReverseMomentum Schedule SeededEstimator
        SimulatorMetropolis StepSize WhiteLaw abc_mcmc annealed_chain apm_mi_mh apm_mi_ss apm_ss_mh
        apm_ss_ss flow_hmc_chain hamiltonian_chain hvae_chain hvi_chain pm_mh
    """,
    "hmcvi.flows": """
        AdditiveLogRatio AugmentedSoftmaxLaw Bijection Cool Leapfrog Splitting StickBreaking System
        compile_trajectories flow_chain leapfrog set_memory three_stage trajectory two_stage
    """,
    "hmcvi.evidence": """
        Continuous Evidence EvidenceWarning ExtendedDensity Fit Grid PerItem TemperedDensity
        Tempering ais bidirectional fit_advi gibbs_tempering importance iwae laplace
        moment_matched_mixture reverse_ais sigmoidal simulated_tempering tempered_evidence
        tempered_hmc thermodynamic_integration
    """,
    "hmcvi.models": """
        Accepted BoltzmannMachine Generator ImportanceEstimate Inpainting MultilevelRegression
        PosePrior Relaxation VAE abc_density abc_rejection generalised_lambda human_pose
        load_iwae_npz lotka_volterra
    """,
    "hmcvi.pyro": """
        AmortizedHMC AugmentedSoftmax AutoHMC EmbeddedPyroDensity KernelAdapter Prior PyroDensity
        SimplexReparam density_from_pyro evidence integrate_out tempered_nuts vectorized_mcmc
    """,
    "hmcvi.sampling": """
        Draws SamplingWarning Warmup sample
    """,
    "hmcvi.data": """
        DataError Images RemoteFile binarize check_pixels deform fetch load_images threshold
    """,
    "hmcvi.training": """
        CheckpointError Config ConfigError InterruptGuard Interrupted Run load_config report
    """,
    "hmcvi.chain": """
        Chain Context Phase Step Transition
    """,
    "hmcvi.density": """
        Bridge Density all_finite
    """,
    "hmcvi.objectives": """
        Bound Weights elbo iwae leave_one_out power_mean
    """,
    "hmcvi.networks": """
        ConditionalMLP GaussianDecoder GaussianEncoder MLP SomeOutputs decoder_of mlp scaled_linear
        spread_ zero_
    """,
    "hmcvi.models.inputs": """
        HyperbolicSecant Inputs Logistic Normal exponential half_cauchy log_normal uniform
    """,
    "hmcvi.data.masks": """
        MaskError missing_pixels
    """,
}


@pytest.mark.parametrize("module", NAMES)
def test_is_where_it_was(module: str) -> None:
    found = importlib.import_module(module)
    missing = [name for name in NAMES[module].split() if not hasattr(found, name)]
    assert not missing, f"{module} has lost {', '.join(missing)}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    for module in ("hmcvi", "hmcvi.kernels", "hmcvi.flows", "hmcvi.models"):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            importlib.import_module(module).nothing  # noqa: B018
