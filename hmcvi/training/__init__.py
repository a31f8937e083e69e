"""Configurations, the training loop, checkpoints, TensorBoard."""

from hmcvi.training.checkpoint import CheckpointError
from hmcvi.training.config import Config, ConfigError, load_config
from hmcvi.training.fitting import FittedRun, fit
from hmcvi.training.interrupt import Interrupted, InterruptGuard
from hmcvi.training.run import Run
from hmcvi.training.stored_run import StoredRun, load_run
from hmcvi.training.summary import report

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "FittedRun",
    "InterruptGuard",
    "Interrupted",
    "Run",
    "StoredRun",
    "fit",
    "load_config",
    "load_run",
    "report",
]
