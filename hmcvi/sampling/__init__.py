"""Run kernels: warm-up, draws, diagnostics, going on after a stop."""

from hmcvi.sampling.diagnostics import SamplingWarning
from hmcvi.sampling.draws import Draws
from hmcvi.sampling.driver import sample
from hmcvi.sampling.warmup import Warmup

__all__ = ["Draws", "SamplingWarning", "Warmup", "sample"]
