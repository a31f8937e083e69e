"""Optimisers by name."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import AdamW, Muon, Optimizer


def build_optimizers(model: nn.Module, name: str, lr: float, weight_decay: float = 0.0) -> list[Optimizer]:
    """adam: for everything.  muon: for the matrices, their updates as large as Adam's; Adam for the rest.

    Muon replaces the running mean of a gradient matrix, U S Vᵀ, by U Vᵀ.  [Jordan et al. 2024]
    Matrices, and they alone, shrink by 1 − lr · weight_decay at every step.  [Loshchilov & Hutter 2019]
    """
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    if name == "adam":
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": others},
        ]
        return [AdamW(groups, lr, weight_decay=0.0)]
    muon = Muon(matrices, lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    return [muon, AdamW(others, lr, weight_decay=0.0)]
