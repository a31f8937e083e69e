"""Configurations, the training loop, checkpoints, TensorBoard."""

from hmcvi.training.checkpoint import CheckpointError
from hmcvi.training.config import Config, ConfigError, load_config
from hmcvi.training.interrupt import Interrupted, InterruptGuard
from hmcvi.training.run import Run
from hmcvi.training.summary import report

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "InterruptGuard",
    "Interrupted",
    "Run",
    "load_config",
    "report",
]
