"""Metropolis–Hastings for distributions known by their quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Never

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.internal.checks import positive, whole
from hmcvi.internal.random import standard_normal, uniform
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.kernels.mcmc.metropolis import metropolis
from hmcvi.kernels.mcmc.retarget import conditional
from hmcvi.models.generator import Generator


@dataclass(frozen=True, eq=False)
class IntervalMetropolis(Kernel):
    """u₁' = u₁ + s n, then each input of an output from ρ₂ where that output comes within ε of the data.

    With p the quantile level of an input, {p : |x_i(u₁, p) − y_i| < ε} lies in an interval (a_i, b_i) that
    bisection finds, because x_i increases with its own input.  p_i' ~ U(a_i, b_i), accepted with probability

        min(1, γ(u') ρ₂(u₂) V(u₁') / (γ(u) ρ₂(u₂') V(u₁))),   V = Π_i (b_i − a_i),

    so that many outputs can be near the data at once.  γ is exactly invariant however coarse the bisection.
    density: γ, of `hmcvi.models.abc_density(generator, observed, epsilon, kernel="box")`.
    generator: an elementwise one, whose last inputs have an output each.  observed: y [N], or one per chain.
    epsilon: ε.  step_size: s, a number or one per chain [..., 1], not tuned in warm-up.
    num_bisections: evaluations of the generator for the ends of all intervals.
    [McVinish 2012; Graham 2018, §4.10.1]
    """

    density: Density
    generator: Generator
    observed: Tensor
    epsilon: float
    step_size: float | Tensor
    num_bisections: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", positive(self.step_size, "step_size"))
        positive(self.epsilon, "epsilon")
        whole("num_bisections", self.num_bisections, 1)
        generator = self.generator
        if generator.structure != "elementwise" or generator.is_conditional or generator.block > 1:
            raise ValueError(
                "the generator must be elementwise, each output with an input of its own: use abc_mcmc"
            )
        size = self.generator.num_observed
        if self.observed.ndim == 0 or self.observed.shape[-1] != size:
            raise ValueError(
                f"the generator has {size} outputs, observed has shape {list(self.observed.shape)}"
            )

    @torch.no_grad()
    def init(self, position: Tensor) -> Phase:
        low, high = (self._outputs(position, position.new_full((), level)) for level in (0.25, 0.75))
        if not (low <= high).all():
            raise ValueError(
                "outputs must increase with their own inputs: negate the inputs, or use abc_mcmc"
            )
        state: Phase = super().init(position)
        return state

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        here, walk = state.position, standard_normal(state.position, generator)
        moved = here + torch.as_tensor(self.step_size).to(walk) * walk
        lower, upper = self._intervals(torch.stack([here, moved]))
        level = lower[1] + (upper[1] - lower[1]) * uniform(lower[1], generator)
        proposal = self._with_levels(moved, level)
        back = torch.cat([moved[..., : self._local.start], here[..., self._local]], -1)
        rho = self.generator.density
        # ρ₂(u₂) / ρ₂(u₂'), both beside the same u₁
        log_correction = rho.finite_log_prob(back) - rho.finite_log_prob(proposal)
        log_volume = (upper - lower).log().sum(-1)
        log_correction = log_correction + log_volume[1] - log_volume[0]
        possible = self._within(here, lower[0], upper[0])  # else no proposal leads back here
        log_correction = log_correction.where(possible, -torch.inf)
        return metropolis(self.density, state, proposal, log_correction, generator)

    @property
    def _local(self) -> slice:
        """The inputs that belong to outputs."""
        return slice(self.generator.dim - self.generator.num_observed, None)

    def _with_levels(self, position: Tensor, level: Tensor) -> Tensor:
        """The inputs with those of the outputs at quantile levels p.  [..., M], [..., N] -> [..., M]"""
        levels = torch.full_like(position, 0.5)
        levels[..., self._local] = level
        local = self.generator.quantile(levels)[..., self._local]
        return torch.cat([position[..., : self._local.start], local], -1)

    def _within(self, position: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Whether the inputs of all outputs are between these levels [..., N].  [..., M] -> [...]"""
        own, left, right = (
            inputs[..., self._local]
            for inputs in (position, self._with_levels(position, lower), self._with_levels(position, upper))
        )
        return (((own >= left) | (lower == 0)) & (own <= right)).all(-1)

    def _outputs(self, position: Tensor, level: Tensor) -> Tensor:
        return self.generator.observed(self._with_levels(position, level))

    def _intervals(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """a and b of every output.  [..., M] -> [..., N], [..., N]"""
        observed = self.observed.to(position)
        ends = torch.stack([observed - self.epsilon, observed + self.epsilon])
        ends = ends.reshape(2, *[1] * (position.ndim - observed.ndim), *observed.shape)
        both = position.expand(2, *position.shape)  # for the lower and for the upper ends
        low = torch.zeros_like(both[..., self._local])
        high = torch.ones_like(low)
        for _ in range(self.num_bisections):
            middle = (low + high) / 2
            short = self._outputs(both, middle) <= ends
            low, high = middle.where(short, low), high.where(short, middle)
        return low[0], high[1]


@conditional.register
def _(kernel: IntervalMetropolis, density: Density, position: Tensor) -> Never:
    raise ValueError("outputs depend on all inputs together, which cannot be a block of Gibbs")
