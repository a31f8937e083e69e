"""Inverse temperatures 0 = β_0 < β_1 < … < β_K = 1."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.internal.checks import whole

STEEPNESS = 4.0


def sigmoidal(num_temperatures: int) -> Tensor:
    """β_k ∝ σ(4 (2k − K)/K), moved and scaled to run from 0 to 1.  [K + 1]  [Graham 2018, (5.53)]

    >>> [round(beta, 3) for beta in sigmoidal(4).tolist()]
    [0.0, 0.105, 0.5, 0.895, 1.0]
    """
    count = whole("num_temperatures", num_temperatures, 1)
    raw = torch.linspace(-STEEPNESS, STEEPNESS, count + 1, dtype=torch.float64).sigmoid()
    return (raw - raw[0]) / (raw[-1] - raw[0])


def checked(betas: Tensor) -> Tensor:
    """A schedule that someone gave, as [K + 1] numbers of double precision."""
    betas = torch.as_tensor(betas).detach().double().cpu()
    if betas.ndim != 1 or len(betas) < 2 or not (betas[0] == 0 and betas[-1] == 1):
        shown = f"{betas[0]:g}, …, {betas[-1]:g}" if betas.ndim == 1 and len(betas) else list(betas.shape)
        raise ValueError(f"a schedule is a vector of inverse temperatures 0 = β_0, …, β_K = 1, got {shown}")
    if not (betas.diff() > 0).all():
        place = int((betas.diff() <= 0).nonzero()[0])
        raise ValueError(
            f"inverse temperatures must increase: β_{place} = {betas[place]:g}, then {betas[place + 1]:g}"
        )
    return betas


def interpolate(x: Tensor, nodes: Tensor, values: Tensor) -> Tensor:
    """Linear between values [n] at increasing nodes [n].  x: [...] -> [...]"""
    nodes, values = nodes.to(x.device), values.to(x.device)
    right = torch.searchsorted(nodes, x.contiguous()).clamp(1, len(nodes) - 1)
    left_node, right_node = nodes[right - 1], nodes[right]
    share = ((x - left_node) / (right_node - left_node)).clamp(0, 1)
    return torch.lerp(values[right - 1], values[right], share)
