"""The diagonal that makes a matrix positive semidefinite with the least largest eigenvalue."""

from __future__ import annotations

import torch
from torch import Tensor

GROWTH = 5.0  # of the weight of the objective against the barriers
STEPS = 50  # of Newton's method at most, for each weight
DECREMENT = 1e-8


def least_diagonal(matrix: Tensor, tolerance: float = 1e-8) -> Tensor:
    """D = argmin λ_max(W + D) subject to W + D ≥ 0, λ_max to within `tolerance`.  [n, n] -> [n]

    By Newton's method on s t − log|t I − W − D| − log|W + D| for growing s: at its minimum t is within 2n/s
    of the optimum.  [Graham 2018, appendix E; Boyd & Vandenberghe 2004, §11.6]
    """
    size, identity = len(matrix), torch.eye(len(matrix)).to(matrix)
    spectrum = torch.linalg.eigvalsh(matrix)
    diagonal = (1 - spectrum[0]).expand(size).clone()
    bound = spectrum[-1] - spectrum[0] + 2
    weight = 1.0
    while 2 * size / weight > tolerance:
        weight *= GROWTH
        for _ in range(STEPS):
            lower = torch.linalg.inv(matrix + diagonal.diag())
            upper = torch.linalg.inv(bound * identity - matrix - diagonal.diag())
            squared = upper @ upper
            slope = torch.cat([upper.diagonal() - lower.diagonal(), (weight - upper.trace())[None]])
            curvature = torch.zeros(size + 1, size + 1).to(matrix)
            curvature[:size, :size] = lower.square() + upper.square()
            curvature[:size, size] = curvature[size, :size] = -squared.diagonal()
            curvature[size, size] = squared.trace()
            step = -torch.linalg.solve(curvature, slope)
            decrement = -float(slope @ step)
            # damped, it stays inside: the barriers are self-concordant
            step = step / (1 + max(0.0, decrement) ** 0.5)
            diagonal, bound = diagonal + step[:size], bound + step[size]
            if decrement < DECREMENT:
                break
    return diagonal
