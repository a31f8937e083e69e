"""Optimisers by name, and their learning rate."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim import AdamW, Muon, Optimizer


def build_optimizers(
    model: nn.Module,
    name: str,
    lr: float,
    weight_decay: float = 0.0,
    output: nn.Module | None = None,
    output_lr: float = 1.0,
) -> list[Optimizer]:
    """adam: for everything.  muon: for the matrices, their updates as large as Adam's; Adam for the rest.

    Muon replaces the running mean of a gradient matrix, U S Vᵀ, by U Vᵀ.  [Jordan et al. 2024]
    Matrices, and they alone, shrink by 1 − lr · weight_decay at every step.  [Loshchilov & Hutter 2019]
    Parameters without requires_grad are left out; without any there is no optimiser.
    The layer `output` has its learning rate times output_lr, in a group with this "factor".
    """
    scaled = set(output.parameters()) if output is not None and output_lr != 1 else set()

    def groups(parameters: list[nn.Parameter], decay: float) -> list[dict[str, Any]]:
        parts = [
            (1.0, [p for p in parameters if p not in scaled]),
            (output_lr, [p for p in parameters if p in scaled]),
        ]
        return [{"params": part, "factor": factor, "weight_decay": decay} for factor, part in parts if part]

    learned = [p for p in model.parameters() if p.requires_grad]
    matrices = groups([p for p in learned if p.ndim == 2], weight_decay)
    others = groups([p for p in learned if p.ndim != 2], 0.0)
    if name == "adam":
        return [AdamW(both, lr)] if (both := [*matrices, *others]) else []
    muon = [Muon(matrices, lr, adjust_lr_fn="match_rms_adamw")] if matrices else []
    return [*muon, *([AdamW(others, lr)] if others else [])]


PLATEAU_FACTOR = 1 / 3


def learning_rate(
    peak: float, schedule: str, step: int, num_steps: int, num_warmup: float, num_plateaus: int = 0
) -> float:
    """Of step `step`: a linear warm-up, then constant, or half a cosine down to a hundredth of the peak.

    A third of it for every plateau of the validation bound so far.
    """
    rise = min(1.0, (step + 1) / max(1.0, num_warmup))
    fall = 0.5 * (1 + math.cos(math.pi * step / num_steps)) if schedule == "cosine" else 1.0
    return peak * rise * (0.01 + 0.99 * fall) * PLATEAU_FACTOR**num_plateaus
