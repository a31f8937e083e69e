"""Evidence: log Z of a density, from importance sampling to tempered chains."""

from hmcvi.adaptation.schedule import sigmoidal
from hmcvi.evidence.annealing import ais, bidirectional, reverse_ais
from hmcvi.evidence.ends import tempered_evidence
from hmcvi.evidence.fits import Fit, fit_advi, laplace, moment_matched_mixture, pathfinder, refit
from hmcvi.evidence.importance_sampling import importance, iwae
from hmcvi.evidence.natural_gradients import fit_normal
from hmcvi.evidence.pareto import pareto_k
from hmcvi.evidence.renyi import fit_renyi
from hmcvi.evidence.result import Evidence, EvidenceWarning, PerItem
from hmcvi.evidence.sequential import smc
from hmcvi.evidence.tempered import gibbs_tempering, simulated_tempering, tempered_hmc
from hmcvi.evidence.tempering import Continuous, ExtendedDensity, Grid, Neighbours, TemperedDensity, Tempering
from hmcvi.evidence.thermodynamic import thermodynamic_integration

__all__ = [
    "Continuous",
    "Evidence",
    "EvidenceWarning",
    "ExtendedDensity",
    "Fit",
    "Grid",
    "Neighbours",
    "PerItem",
    "TemperedDensity",
    "Tempering",
    "ais",
    "bidirectional",
    "fit_advi",
    "fit_normal",
    "fit_renyi",
    "gibbs_tempering",
    "importance",
    "iwae",
    "laplace",
    "moment_matched_mixture",
    "pareto_k",
    "pathfinder",
    "refit",
    "reverse_ais",
    "sigmoidal",
    "simulated_tempering",
    "smc",
    "tempered_evidence",
    "tempered_hmc",
    "thermodynamic_integration",
]
