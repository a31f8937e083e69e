"""Settings that are learned and then frozen: step size, mass, trajectory length."""

from hmcvi.adaptation.tunable import Tuning, tuning
from hmcvi.adaptation.warmup import Warmup, WarmupError

__all__ = ["Tuning", "Warmup", "WarmupError", "tuning"]
