"""The base of local latents: a normal distribution for each entry of a plate, given the global latents."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hmcvi.density import Density
from hmcvi.evidence.natural_gradients import DiagonalRoot, ascend

FIT_SAMPLES, FIT_STEPS = 16, 100
MAX_COUPLINGS = 1 << 22  # numbers above which entries do not depend on the global latents


class LocalNormal(nn.Module):
    """z_n = μ_n + σ_n (m_n + g^{−½} C_n e_0 + exp(s_n) e), e ~ N(0, I), for each of N entries.

    e_0 [g]: the noise of the global base, of which a linear Gaussian model has just such posteriors.  μ_n and
    σ_n are the fit it begins with; m_n, s_n and C_n are trained, in its units.
    """

    seen: Tensor  # whether an entry began with a fit of its own  [N]

    def __init__(self, size: int, dim: int, outer_dim: int, like: Tensor) -> None:
        super().__init__()
        zeros = torch.zeros(size, dim, dtype=like.dtype, device=like.device)
        self.centre, self.unit = nn.Parameter(zeros.clone()), nn.Parameter(torch.ones_like(zeros))
        self.loc, self.log_scale = nn.Parameter(zeros.clone()), nn.Parameter(zeros.clone())
        self.register_buffer("seen", torch.zeros(size, dtype=torch.bool, device=like.device))
        self.coupling: nn.Parameter | None = None
        if 0 < outer_dim * zeros.numel() <= MAX_COUPLINGS:
            self.coupling = nn.Parameter(zeros[..., None].repeat(1, 1, outer_dim))

    def forward(self, indices: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
        """Means [..., B, d] and scales [B, d] of the entries `indices` [B].  outer: e_0  [..., g]"""
        unit = self.unit[indices].detach()
        loc = self.loc[indices]
        if self.coupling is not None:
            coupling = self.coupling[indices] * outer.shape[-1] ** -0.5
            loc = loc + torch.einsum("nig,...g->...ni", coupling, outer)
        return self.centre[indices].detach() + unit * loc, unit * self.log_scale[indices].exp()

    @torch.no_grad()
    def begin(self, indices: Tensor, mean: Tensor, scale: Tensor, coupling: Tensor) -> None:
        """Begin with z_n ~ N(mean_n + coupling_n e_0, scale_n²); other entries with the mixture's moments.

        mean, scale: [B, d].  coupling: [B, d, g]
        """
        if self.coupling is None:
            scale = (scale.square() + coupling.square().sum(-1)).sqrt()
        spread = (scale.square().mean(0) + mean.var(0, correction=0)).sqrt()
        for parameter, common, own in ((self.centre, mean.mean(0), mean), (self.unit, spread, scale)):
            parameter.copy_(common.expand_as(parameter))
            parameter[indices] = own
        self.seen[indices] = True
        if self.coupling is not None:
            self.coupling.copy_(coupling.mean(0).expand_as(self.coupling))
            self.coupling[indices] = coupling
            self.coupling.mul_(coupling.shape[-1] ** 0.5 / self.unit[..., None])

    def is_new(self, indices: Tensor) -> bool:
        """Whether at least a quarter of these entries have not been seen."""
        return bool(4 * self.seen[indices].sum() <= 3 * len(indices)) and not bool(self.seen.all())

    @torch.no_grad()
    def fit(self, indices: Tensor, density: Density) -> None:
        """Begin entries that have not been seen with a fit to their log p: [..., B, d] -> [..., B]."""
        new = ~self.seen[indices]
        first, unit = self.centre[indices], self.unit[indices]
        mean, root, _ = ascend(density, first, DiagonalRoot(unit), FIT_STEPS, 0, FIT_SAMPLES)
        fitted = new[:, None] & mean.isfinite() & root.scale.isfinite()
        self.centre[indices] = mean.where(fitted, first)
        self.unit[indices] = root.scale.where(fitted, unit)
        if self.coupling is not None:
            self.coupling[indices] *= (unit / self.unit[indices])[..., None]
        self.seen[indices] = True
