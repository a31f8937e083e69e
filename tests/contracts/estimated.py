"""The registry of kernels for estimated densities, and an estimate of which all is known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hmcvi.kernels import (
    HMC,
    AuxiliaryPseudoMarginal,
    DiagonalMetric,
    Estimator,
    MetropolisIndependence,
    PseudoMarginalHMC,
    apm_mi_mh,
    apm_mi_ss,
    apm_ss_mh,
    apm_ss_ss,
    pm_mh,
)
from hmcvi.kernels.pseudo_marginal.kernels import PseudoMarginal
from tests.support.problems import F64
from tests.support.targets import Target, normal_cdf

SIZE = 3  # auxiliary variables


class Noisy:
    """γ times noise of mean one that grows with |x|, and the exact distribution of u given x.

    normal: ε = γ exp(s·u − s²/2), u | x ~ N(s, 1).  uniform: ε = γ Π s e^{s u_i} / (e^s − 1).
    """

    def __init__(
        self, target: Target, noise: float, distribution: str = "normal", chainwise: bool = False
    ) -> None:
        self.target, self.noise, self.distribution = target, noise, distribution
        self.num_prepared = self.num_estimated = 0  # chains
        self.estimator = Estimator(
            self.log_estimate, SIZE, law=distribution, prepare=self.prepare, chainwise=chainwise
        )

    def slope(self, x: Tensor) -> Tensor:
        return self.noise * (0.3 + x[..., :1].tanh().square())

    def prepare(self, x: Tensor) -> Tensor:
        self.num_prepared += x[..., 0].numel()
        return self.slope(x)

    def log_estimate(self, x: Tensor, u: Tensor, slope: Tensor) -> Tensor:
        self.num_estimated += x[..., 0].numel()
        if self.distribution == "normal":
            log_noise = slope * u - 0.5 * slope.square()
        else:
            log_noise = slope * u - (torch.expm1(slope) / slope).log() if self.noise else 0 * u
        return self.target.density.log_prob(x) + log_noise.sum(-1)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        x, uniform = self.target.draw(count), torch.rand(count, SIZE, dtype=F64)
        slope = self.slope(x)
        if self.distribution == "normal":
            return x, slope + torch.special.ndtri(uniform)
        return x, torch.log1p(uniform * torch.expm1(slope)) / slope if self.noise else uniform

    def uniforms(self, x: Tensor, u: Tensor) -> Tensor:
        slope = self.slope(x)
        if self.distribution == "normal":
            return normal_cdf(u - slope)
        return torch.expm1(slope * u) / torch.expm1(slope) if self.noise else u


ESTIMATED: dict[str, Callable[[Estimator], PseudoMarginal]] = {
    "PM-MH": lambda e: pm_mh(e, 0.8, DiagonalMetric(torch.tensor([0.1, -0.1], dtype=F64))),
    "correlated PM-MH": lambda e: pm_mh(e, 0.8, correlation=0.9),
    "APM-MI+MH": lambda e: apm_mi_mh(e, 1.0),
    "APM-SS+MH": lambda e: apm_ss_mh(e, 1.0),
    "APM-MI+SS": lambda e: apm_mi_ss(e, 2.0),
    "APM-SS+SS": lambda e: apm_ss_ss(e, 1.0, max_step_out=2),
    "APM-MI+HMC": lambda e: AuxiliaryPseudoMarginal(
        e,
        lambda density: MetropolisIndependence(density, e.distribution),
        lambda density: HMC(density, 0.5, 3),
    ),
    "PM-HMC": lambda e: PseudoMarginalHMC(e, 0.7, 3, DiagonalMetric(torch.tensor([0.1, -0.1], dtype=F64))),
}
