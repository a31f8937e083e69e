"""A trainer as `train.py` makes it, in its second stage."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.data import Images
from hmcvi.internal.processes import ALONE, Processes
from hmcvi.training.build import build_chain, build_model, build_objective
from hmcvi.training.config import Config
from hmcvi.training.loop import Trainer
from hmcvi.training.state import Stage


def make_trainer(config: Config, train: Tensor, processes: Processes = ALONE) -> Trainer:
    """Of the chain of `config`, from random weights.  train: grey images [N, pixels]"""
    torch.manual_seed(config.seed)
    pixels = train.shape[-1]
    chain = build_chain(config.chain, config.model.latent_dim, pixels, config.train.compile)
    model = build_model(config, pixels, chain)
    images = Images(train, train[:0], train[:0], None, (1, pixels))
    stage = Stage("chain", config.train.epochs, config.train.lr, 0)
    return Trainer(config, stage, model, build_objective(config), images, processes)
