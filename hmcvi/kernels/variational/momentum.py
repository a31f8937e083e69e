"""Steps that draw, refresh and drop the momentum."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hmcvi.chain import Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.dynamics.metrics import Metric
from hmcvi.kernels.variational.mass import Mass
from hmcvi.kernels.variational.reverse import ReverseMomentum


class Persistence(nn.Module):
    """α in (−1, 1): the share of the momentum that a refreshment keeps, learned through tanh or fixed."""

    def __init__(self, initial: float = 0.5, learned: bool = True) -> None:
        super().__init__()
        if not abs(initial) < 1:
            raise ValueError(f"the persistence α of the momentum must satisfy |α| < 1, got {initial}")
        raw = torch.tensor(math.atanh(initial))
        if learned:
            self.raw = nn.Parameter(raw)
        else:
            self.register_buffer("raw", raw)

    def forward(self) -> Tensor:
        return self.raw.tanh()


class DrawMomentum(Step):
    """Draw v ~ N(0, M(x)); log_ratio = −log N(v; 0, M)."""

    def __init__(self, mass: Mass) -> None:
        super().__init__()
        self.mass = mass

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        context = Context.of(context)
        metric = self.mass(context)
        noise = context.randomness.normal(state.position)
        momentum = metric.color(noise)
        log_ratio, zero_mean = _price_of_draw(metric, noise)
        return Transition(
            state._replace(momentum=momentum),
            log_ratio,
            torch.zeros_like(log_ratio),
            zero_mean,
            {"momentum": log_ratio},
        )


class RefreshMomentum(Step):
    """Partial refreshment u = α v + √(1−α²) v', v' ~ N(0, M), with a reverse model r of v given u:

        log_ratio = log r(v | z, u, t, x) − log q_U(u | v),   log q_U = log N(v'; 0, M) − (d/2) log(1−α²)

    Without a learned model it is reversed as at stationarity, r(v | u) = q_U(v | u), and
    log_ratio = log N(v; 0, M) − log N(u; 0, M).  [Horowitz 1991; Wolf et al. 2016, eqs. 15, 21]

    residual: whether r is a model of (v − α u)/√(1−α²), which is N(0, M) at stationarity, in place of v; an
    untrained one is then the stationary reversal.  [Geffner & Domke 2023]
    """

    def __init__(
        self,
        mass: Mass,
        persistence: Persistence,
        reverse: ReverseMomentum | None = None,
        time: float = 1.0,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.mass, self.persistence, self.reverse, self.time = mass, persistence, reverse, time
        self.residual = residual
        self.uses_force = None if reverse is None else reverse.uses_force

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        old = state.momentum
        assert old is not None
        context = Context.of(context)
        metric = self.mass(context)
        alpha = self.persistence()
        log_width = 0.5 * torch.log1p(-alpha.square())  # log √(1−α²)
        noise = context.randomness.normal(old)
        new = alpha * old + log_width.exp() * metric.color(noise)
        forward_price, zero_mean = _price_of_draw(metric, noise)
        if self.reverse is None:
            log_ratio = metric.energy(new) - metric.energy(old)
        else:
            seen = self.reverse.features(state, target)
            priced, log_det = old, old.shape[-1] * log_width
            if self.residual:  # in whose units both densities have the same factor √(1−α²)
                priced, log_det = (old - alpha * new) * (-log_width).exp(), torch.zeros_like(log_det)
            reverse = self.reverse.log_prob(priced, seen, metric, self.time, context, new)
            log_ratio = reverse + forward_price + log_det
        stationary = self.reverse is None or self.residual  # the draw's noise cancels
        return Transition(
            state._replace(momentum=new),
            log_ratio,
            torch.zeros_like(log_ratio),
            torch.zeros_like(log_ratio) if stationary else zero_mean,
            {"momentum": log_ratio},
        )


class DropMomentum(Step):
    """Drop v; log_ratio = log r(v | z, t, x), without a learned model r = N(0, M)."""

    def __init__(self, mass: Mass, reverse: ReverseMomentum | None = None, time: float = 1.0) -> None:
        super().__init__()
        self.mass, self.reverse, self.time = mass, reverse, time
        self.uses_force = None if reverse is None else reverse.uses_force

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        momentum = state.momentum
        assert momentum is not None
        context = Context.of(context)
        metric = self.mass(context)
        if self.reverse is None:
            log_ratio = metric.log_prob(momentum)
        else:
            seen = self.reverse.features(state, target)
            log_ratio = self.reverse.log_prob(momentum, seen, metric, self.time, context)
        return Transition.deterministic(state._replace(momentum=None), log_ratio, momentum=log_ratio)


def _price_of_draw(metric: Metric, noise: Tensor) -> tuple[Tensor, Tensor]:
    """−log N(L n; 0, M) = entropy + ½(|n|² − d), and its zero-mean last term alone."""
    dim = noise.shape[-1]
    zero_mean = 0.5 * (noise.square().sum(-1) - dim)
    constant = 0.5 * dim * (1 + math.log(2 * math.pi))
    return zero_mean + metric.log_det() + constant, zero_mean
