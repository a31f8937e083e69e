"""Run kernels: warm-up, draws, diagnostics, going on after a stop."""

from hmcvi.adaptation.warmup import Warmup
from hmcvi.sampling.diagnostics import SamplingWarning
from hmcvi.sampling.draws import Draws
from hmcvi.sampling.rows import in_batches
from hmcvi.sampling.run import sample

__all__ = ["Draws", "SamplingWarning", "Warmup", "in_batches", "sample"]
