"""Bayesian logistic regression."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from hmcvi.density import Density, standard_log_prob


class LogisticRegression(Density):
    """γ(w) = N(w; 0, I) Π_n σ(y_n x̃_nᵀ w), x̃ = (1, standardised features), its gradient in closed form.

    features: [N, d − 1]; labels y in {−1, 1}: [N]; w: [..., d].
    """

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        deviation = features.std(0, correction=0)
        standard = (features - features.mean(0)) / deviation.where(deviation > 0, 1.0)
        self.rows = torch.cat([torch.ones_like(standard[:, :1]), standard], 1) * labels[:, None]  # y_n x̃_n
        super().__init__(lambda w: logsigmoid(w @ self.rows.T).sum(-1) + standard_log_prob(w))

    @property
    def dim(self) -> int:
        return self.rows.shape[1]

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        margin = position @ self.rows.T
        value = logsigmoid(margin).sum(-1) + standard_log_prob(position)
        return value, (-margin).sigmoid() @ self.rows - position
