"""Optimisers by name."""

from __future__ import annotations

from torch import nn
from torch.optim import Adam, Muon, Optimizer


def build_optimizers(model: nn.Module, name: str, lr: float) -> list[Optimizer]:
    """adam: for everything.  muon: for the matrices, their updates as large as Adam's; Adam for the rest.

    Muon replaces the running mean of a gradient matrix, U S Vᵀ, by U Vᵀ.  [Jordan et al. 2024]
    """
    parameters = list(model.parameters())
    if name == "adam":
        return [Adam(parameters, lr)]
    matrices = [p for p in parameters if p.ndim == 2]
    others = [p for p in parameters if p.ndim != 2]
    muon = Muon(matrices, lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    return [muon, Adam(others, lr)]
