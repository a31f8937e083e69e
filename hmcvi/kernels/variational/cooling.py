"""The tempering schedule of the Hamiltonian VAE."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class QuadraticCooling(nn.Module):
    """1/√β_k = 1/√β_0 + (1 − 1/√β_0) k²/K², from the learned β_0 in (0, 1) to β_K = 1.

    [Caterini et al. 2018]
    """

    def __init__(self, num_steps: int, initial_beta: float = 0.5) -> None:
        super().__init__()
        if not 0 < initial_beta < 1:
            raise ValueError(f"initial_beta must lie in (0, 1), got {initial_beta}")
        self.num_steps = num_steps
        self.raw = nn.Parameter(torch.tensor(math.log(initial_beta) - math.log1p(-initial_beta)))

    def heat(self, k: int) -> Tensor:
        """1/√β_k"""
        initial = self.raw.sigmoid().rsqrt()
        return initial + (1 - initial) * (k / self.num_steps) ** 2

    def factor(self, k: int) -> CoolingFactor:
        """ρ_0 = 1/√β_0 heats the momentum once; ρ_k = √(β_{k−1}/β_k) cools it after step k."""
        return CoolingFactor(self, k)


class CoolingFactor(nn.Module):
    """One factor of a shared schedule."""

    def __init__(self, cooling: QuadraticCooling, k: int) -> None:
        super().__init__()
        self.cooling, self.k = cooling, k

    def forward(self) -> Tensor:
        heat = self.cooling.heat(self.k)
        return heat if self.k == 0 else heat / self.cooling.heat(self.k - 1)
