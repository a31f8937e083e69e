"""A regression whose intercepts differ between groups, with its evidence up to three integrals."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hmcvi.density import Density

SCALE = 2.5  # of the half-Cauchy priors


class MultilevelRegression(Density):
    """log p(y, z) of y_i ~ N(a_{c_i} + bᵀx_i, ε²), groups c_i with intercepts a_j = μ_a + σ_a n_j,
    coefficients b_k = μ_b + σ_b m_k;  n_j, m_k, μ_a, μ_b ~ N(0, 1), σ_a, σ_b, ε ~ HalfCauchy(2.5).

    z = (log σ_a, μ_a, log σ_b, μ_b, log ε, m, n), as the named variables log_sigma_a, mu_a, …, m [K], n [J].
    y: [N]; x: [N, K]; group: c [N], of 0, …, J − 1.  [Gelman & Hill 2006, ch. 12; Graham 2018, figure 5.5]

    >>> y, x = torch.tensor([1.0, 0.5, 2.0]), torch.tensor([[1.0], [0.0], [2.0]])
    >>> density = MultilevelRegression(y, x, group=torch.tensor([0, 1, 1]))
    >>> density.log_prob(torch.zeros(10, density.dim)).shape
    torch.Size([10])
    """

    def __init__(self, y: Tensor, x: Tensor, group: Tensor) -> None:
        if y.ndim != 1 or x.ndim != 2 or not len(y) == len(x) == len(group):
            raise ValueError(
                f"y must be [N], x [N, K] and group [N], got {list(y.shape)}, {list(x.shape)} and "
                f"{list(group.shape)}"
            )
        if not (y.isfinite().all() and x.isfinite().all()):
            raise ValueError("y and x must be finite: leave out what was not observed")
        if group.is_floating_point() or group.min() < 0:
            raise ValueError("group must be whole numbers from 0, one for each of y")
        self.num_data, self.num_groups, self.num_features = len(y), int(group.max()) + 1, x.shape[1]
        features = torch.cat([torch.nn.functional.one_hot(group).to(x), x], -1)  # [N, J + K]
        self._gram, self._moment, self._square = features.mT @ features, y @ features, y @ y
        # Σ_i (y_i − f_iᵀw)² = |y − Q Qᵀy|² + |Qᵀy − R w|², the same for any number of data
        q, self._triangle = torch.linalg.qr(features)
        self._projected = y @ q
        self._least = (y - self._projected @ q.mT).square().sum()
        names = ("log_sigma_a", "mu_a", "log_sigma_b", "mu_b", "log_epsilon")
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names, ())
        super().__init__(self._joint, shapes=shapes | {"m": (self.num_features,), "n": (self.num_groups,)})

    @property
    def dim(self) -> int:
        return 5 + self.num_features + self.num_groups

    def _joint(self, z: dict[str, Tensor]) -> Tensor:
        normals = torch.cat([z["mu_a"][..., None], z["mu_b"][..., None], z["m"], z["n"]], -1)
        log_scales = torch.stack([z["log_sigma_a"], z["log_sigma_b"], z["log_epsilon"]], -1)
        intercepts = z["mu_a"][..., None] + z["log_sigma_a"].exp()[..., None] * z["n"]
        slopes = z["mu_b"][..., None] + z["log_sigma_b"].exp()[..., None] * z["m"]
        weights = torch.cat([intercepts, slopes], -1)
        residual = self._least + (self._projected - weights @ self._triangle.mT).square().sum(-1)
        log_epsilon = z["log_epsilon"]
        likelihood = -0.5 * residual * (-2 * log_epsilon).exp() - self.num_data * log_epsilon
        constant = 0.5 * (self.num_data + normals.shape[-1]) * math.log(2 * math.pi)
        return likelihood - 0.5 * normals.square().sum(-1) + _half_cauchy(log_scales).sum(-1) - constant

    def log_marginal(self, log_scales: Tensor) -> Tensor:
        """log p(y, log σ_a, log σ_b, log ε), all that is normal integrated out.  [..., 3] -> [...]

        y is N(0, V + R S Rᵀ): V of ε and the spread of intercepts within groups, S = U Uᵀ that of the
        coefficients of R = (1, x).  With P = Rᵀ V⁻¹ R, h = Rᵀ V⁻¹ y and A = I + Uᵀ P U,

            −2 log p(y | σ_a, σ_b, ε) = N log 2π + log|V| + log|A| + yᵀ V⁻¹ y − |A^{−½} Uᵀ h|².
        """
        variance_a, variance_b, noise = (2 * log_scales).exp().unbind(-1)
        groups = self.num_groups
        counts = self._gram.diagonal()[:groups]  # [J]
        sums, totals = torch.cat([counts[:, None], self._gram[:groups, groups:]], -1), self._moment[:groups]
        # V⁻¹ = (I − Σ_j w_j 1_j 1_jᵀ) / ε²
        w = variance_a[..., None] / (noise[..., None] + counts * variance_a[..., None])
        log_det = self.num_data * noise.log()
        log_det = log_det + torch.log1p(counts * (variance_a / noise)[..., None]).sum(-1)

        def within(whole: Tensor, first: Tensor, second: Tensor) -> Tensor:
            removed = torch.einsum("...j,jk,jl->...kl", w, first, second)
            return (whole - removed) / noise[..., None, None]

        design, target = self._regressors()
        root = self._coefficient_root(variance_b)
        precision = within(design, sums, sums)
        linear = within(target[:, None], sums, totals[:, None])
        quadratic = within(self._square.view(1, 1), totals[:, None], totals[:, None])[..., 0, 0]
        inner = torch.eye(root.shape[-1]).to(root) + root.mT @ precision @ root
        factor = torch.linalg.cholesky_ex(inner).L
        explained = torch.linalg.solve_triangular(factor, root.mT @ linear, upper=False)
        log_det = log_det + 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        # yᵀ (V + R S Rᵀ)⁻¹ y, of which rounding leaves nothing where ε is tiny; never below least squares
        remaining = torch.maximum(quadratic - explained.square().sum((-2, -1)), self._least / noise)
        constant = self.num_data * math.log(2 * math.pi)
        return -0.5 * (constant + log_det + remaining) + _half_cauchy(log_scales).sum(-1)

    def _regressors(self) -> tuple[Tensor, Tensor]:
        """RᵀR [K + 1, K + 1] and Rᵀy [K + 1] of R = (1, x): what belongs to a group, summed over groups."""
        groups, gram = self.num_groups, self._gram
        pooled = torch.cat([gram[:groups].sum(0, keepdim=True), gram[groups:]])  # [K + 1, J + K]
        design = torch.cat([pooled[:, :groups].sum(1, keepdim=True), pooled[:, groups:]], 1)
        return design, torch.cat([self._moment[:groups].sum(0, keepdim=True), self._moment[groups:]])

    def _coefficient_root(self, variance_b: Tensor) -> Tensor:
        """U: (μ_a, b) = U (μ_a, μ_b, m).  [...] -> [..., K + 1, K + 2]"""
        count = self.num_features
        means = torch.zeros(count + 1, 2).to(variance_b)
        means[0, 0], means[1:, 1] = 1, 1
        spread = torch.cat([torch.zeros(1, count), torch.eye(count)]).to(variance_b)
        each = variance_b.sqrt()[..., None, None] * spread
        return torch.cat([means.expand(*each.shape[:-1], 2), each], -1)


def _half_cauchy(log_scale: Tensor) -> Tensor:
    """log density of log σ, σ ~ HalfCauchy(2.5)"""
    log_ratio = log_scale - math.log(SCALE)
    return math.log(2 / math.pi) + log_ratio - torch.nn.functional.softplus(2 * log_ratio)
