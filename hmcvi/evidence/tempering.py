"""Tempering: the temperature as a variable of the chain.

The joint density of z and β, with ζ a guess of Z and Δ(z) = −log γ(z) + log ζ + log q(z):

    log p(z, β) = β (log γ(z) − log ζ) + (1 − β) log q(z),   p(β | z) ∝ e^{−βΔ(z)}

At β = 0 and 1 the distribution of z is that of base and target, and Z = ζ p(β = 1) / p(β = 0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from hmcvi.adaptation.pilot import SetStep, steps_as_given
from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.evidence.bases import Base, BaseDistribution
from hmcvi.internal import random
from hmcvi.internal.layout import Layout
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.kernels.mcmc.retarget import tempered

INVERSE_TEMPERATURE = "inverse_temperature"
SMALL = 1e-3  # |Δ| below which the series is exact to rounding


class Temperatures(Protocol):
    """A set of inverse temperatures β: draws from p(β | z), and its values at both ends."""

    def draw(self, delta: Tensor, generator: torch.Generator | None) -> Tensor:
        """β ~ p(β | z)  [...] -> [...]"""

    def log_ends(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """log p(0 | z) and log p(1 | z), less their prior log-weights if there are  [...] -> [...], [...]"""


def move(
    temperatures: Temperatures, beta: Tensor, delta: Tensor, generator: torch.Generator | None
) -> Tensor:
    """β after a move that leaves p(β | z) as it is: a fresh draw, unless these temperatures know another."""
    if isinstance(temperatures, Neighbours):
        return temperatures.walk(beta, delta, generator)
    return temperatures.draw(delta, generator)


class Continuous:
    """β in all of [0, 1]: p(0 | z) = Δ/(1 − e^{−Δ}), p(1 | z) = Δ/(e^Δ − 1).  [Graham 2018, (5.21)–(5.31)]"""

    def draw(self, delta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw β = −log(1 − u (1 − e^{−|Δ|})) / |Δ|, u ~ U[0, 1), measured from the likelier end."""
        u, size = random.uniform(delta, generator), delta.abs()
        away = (-torch.log1p(u * torch.expm1(-size)) / size.clamp(min=SMALL)).where(size > SMALL, u)
        return torch.where(delta < 0, 1 - away, away).clamp(0, 1)

    def log_ends(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        size = delta.abs()
        series = size / 2 - size.square() / 24
        exact = size.log() - torch.log(-torch.expm1(-size.clamp(min=SMALL)))
        likely = exact.where(size > SMALL, series)  # log p at the likelier end
        return likely - delta.clamp(max=0).abs(), likely - delta.clamp(min=0)


class Grid:
    """β_0, …, β_K with prior weights e^{w_k} ζ^{−β_k}: simulated tempering.

    log_weights: w [*items, K + 1], zero if None.  Estimates are right with any; all temperatures are equally
    likely with w_k = −log ∫ (γ/ζ)^{β_k} q^{1−β_k}.  [Graham 2018, algorithm 7, (2.67)]
    """

    def __init__(self, betas: Tensor, log_weights: Tensor | None = None) -> None:
        self.betas = betas
        self.log_weights = torch.zeros_like(betas) if log_weights is None else log_weights

    def log_prob(self, delta: Tensor) -> Tensor:
        """log p(β_k | z) = w_k − β_k Δ(z) + const  [...] -> [..., K + 1]"""
        return (self.log_weights.to(delta) - self.betas.to(delta) * delta[..., None]).log_softmax(-1)

    def draw(self, delta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw by the inverse of the cumulative distribution."""
        cumulative = self.log_prob(delta).exp().cumsum(-1)
        u = random.uniform(delta, generator)[..., None] * cumulative[..., -1:]
        index = torch.searchsorted(cumulative, u, right=True).clamp(max=len(self.betas) - 1)
        return self.betas.to(delta)[index[..., 0]]

    def log_ends(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = self.log_prob(delta) - self.log_weights.to(delta)
        return log_prob[..., 0], log_prob[..., -1]

    def log_visits(self, beta: Tensor) -> tuple[Tensor, Tensor]:
        """log 1(β = 0) and log 1(β = 1), less their log-weights: what counts visits.  [..., *items]"""
        weights = self.log_weights.to(beta)
        ends = ((self.betas[0], weights[..., 0]), (self.betas[-1], weights[..., -1]))
        first, last = ((beta == end).to(beta).log() - weight for end, weight in ends)
        return first, last

    def learned(self, delta: Tensor, time: int) -> Grid:
        """w_k ← w_k − min(1, (K + 1)/t) · mean p(β_k | z) over chains, after t transitions; w_0 stays zero.

        Stochastic approximation with its best rate, begun slowly.  delta: [chains, *items].  [Tan 2017]
        """
        visits = self.log_prob(delta).exp().mean(0)
        weights = self.log_weights.to(visits) - min(1.0, len(self.betas) / time) * visits
        return type(self)(self.betas, weights - weights[..., :1])


class Neighbours(Grid):
    """A `Grid` on which β takes random-walk steps to the next temperature above or below.

    As simulated tempering was first described; of K temperatures some K² steps lead from one end to the
    other.  [Marinari & Parisi 1992; Graham 2018, §2.3.3]
    """

    def walk(self, beta: Tensor, delta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Propose k ± 1, at an end the one neighbour there is, and accept by Metropolis and Hastings.

        beta, delta: [...]
        """
        betas, top = self.betas.to(delta), len(self.betas) - 1
        index = (betas - beta[..., None]).abs().argmin(-1)
        up = (random.uniform(delta, generator) < 0.5) & (index < top) | (index == 0)
        proposal = (index + torch.where(up, 1, -1)).clamp(0, top)
        log_prob = self.log_prob(delta)
        new, old = (log_prob.gather(-1, k[..., None])[..., 0] for k in (proposal, index))
        # from an end the way there is certain, the way back as likely as not
        choices = [((k > 0).to(delta) + (k < top)).log() for k in (index, proposal)]
        accepted = random.uniform(delta, generator).log() < new - old + choices[0] - choices[1]
        return betas[torch.where(accepted, proposal, index)]


class TemperedDensity(Density):
    """The density log p(z, β) on R^d × [0, 1], β the last coordinate.

    log_zeta: a number or one per item [*items].
    Where the variables of the target have names, β is `inverse_temperature`.
    """

    def __init__(self, target: Density, log_zeta: float | Tensor = 0.0) -> None:
        if target.base is None:
            raise ValueError("tempering needs a base: build the target as Density(..., base=q0)")
        self.target, self.log_zeta = target, torch.as_tensor(log_zeta)
        super().__init__(self._joint)
        if target.layout is not None:
            if INVERSE_TEMPERATURE in target.layout.shapes:
                raise ValueError(f"{INVERSE_TEMPERATURE} is the name of β: give the variable another one")
            self.layout = Layout({**target.layout.shapes, INVERSE_TEMPERATURE: ()})

    def delta(self, z: Tensor, log_target: Tensor | None = None) -> Tensor:
        """Δ(z) = −log γ(z) + log ζ + log q(z).  [..., d] -> [...]"""
        assert self.target.base is not None
        log_target = self.target.finite_log_prob(z) if log_target is None else log_target
        return self.target.base.finite_log_prob(z) + self.log_zeta.to(z) - log_target

    def _joint(self, position: Tensor) -> Tensor:
        z, beta = position[..., :-1], position[..., -1]
        assert self.target.base is not None
        bridged = self.target.bridge(beta).finite_log_prob(z) - beta * self.log_zeta.to(z)
        return bridged.where((beta >= 0) & (beta <= 1), -torch.inf)


class ExtendedDensity(Density):
    """The density log p(z, u) = log p(z, β) + log β (1 − β), β = σ(u), on R^{d+1}, u the last coordinate.

    For HMC and, as `potential_fn`, for Pyro's NUTS.  [Graham & Storkey 2017; Graham 2018, (5.23)]
    """

    def __init__(self, base: Base, target: Density, log_zeta: float | Tensor = 0.0) -> None:
        self.tempered = TemperedDensity(BaseDistribution(base).target(target), log_zeta)
        super().__init__(self._extended)

    def _extended(self, position: Tensor) -> Tensor:
        z, u = position[..., :-1], position[..., -1]
        target = self.tempered.target
        assert target.base is not None
        log_q = target.base.log_prob(z)
        delta = log_q + self.tempered.log_zeta.to(z) - target.log_prob(z)
        return log_q - u.sigmoid() * delta + logsigmoid(u) + logsigmoid(-u)

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """∇_z = (1 − β) ∇log q + β ∇log γ,  ∂_u = 1 − 2β − β (1 − β) Δ(z)"""
        target = self.tempered.target
        assert target.base is not None
        z, u = position[..., :-1], position[..., -1]
        beta = u.sigmoid()
        log_q, grad_q = target.base.value_and_grad(z)
        log_target, grad_target = target.value_and_grad(z)
        delta = log_q + self.tempered.log_zeta.to(z) - log_target
        value = log_q - beta * delta + logsigmoid(u) + logsigmoid(-u)
        grad_z = (1 - beta[..., None]) * grad_q + beta[..., None] * grad_target
        grad_u = 1 - 2 * beta - beta * (1 - beta) * delta
        return value, torch.cat([grad_z, grad_u[..., None]], -1)

    def potential_fn(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """−log p(z, u) of {"z": [..., d], "u": [...]}, as Pyro's HMC and NUTS want it."""
        position = torch.cat([parameters["z"], parameters["u"][..., None]], -1)
        return -self.log_prob(position)


class TemperedState(NamedTuple):
    """The state of a tempered chain."""

    position: Tensor  # (z, β)  [..., d + 1]
    log_prob: Tensor  # log p(z, β)  [...]
    inner: Phase  # z with log γ and, where the kernel has it, ∇ log γ


@dataclass(frozen=True, eq=False)
class Tempering(Kernel):
    """Updates of p(z, β) in turn: z | β by a kernel that leaves γ_β invariant, β | z exactly or by a walk.

    kernel: for z, written with the target, which must have a base.
    temperatures: Continuous() is Gibbs continuous tempering, Grid(β_0, …, β_K) simulated tempering and
        Neighbours(β_0, …, β_K) the same by random-walk moves; `density` leaves out the weights of a grid.
    log_zeta: log ζ, a guess of log Z, a number or one per item [*items].
    step_sizes(kernel, β): the kernel with its step size for β; as given if left out.
    info has Δ(z) of the new state as `delta`, from which estimates are made, and all that `kernel` reports.
    [Graham 2018, algorithms 7 and 14]
    """

    kernel: Kernel
    temperatures: Temperatures
    log_zeta: float | Tensor = 0.0
    step_sizes: SetStep = steps_as_given
    density: TemperedDensity = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "density", TemperedDensity(self.kernel.density, self.log_zeta))

    @torch.no_grad()
    def init(self, position: Tensor) -> TemperedState:
        """position: (z, β)  [..., d + 1]"""
        beta = position[..., -1]
        if not ((beta >= 0) & (beta <= 1)).all():
            raise ValueError("the last coordinate of a tempered position is β and must lie in [0, 1]")
        inner = self.kernel.init(position[..., :-1])
        return self._at(inner, beta, self.density.delta(inner.position, inner.log_prob))

    @torch.no_grad()
    def step(
        self, state: TemperedState, generator: torch.Generator | None = None
    ) -> tuple[TemperedState, Info]:
        beta = state.position[..., -1]
        kernel = tempered(self.step_sizes(self.kernel, beta), beta)
        inner, info = kernel.step(state.inner, generator)
        delta = self.density.delta(inner.position, inner.log_density(self.kernel.density))
        moved = move(self.temperatures, beta, delta, generator)
        return self._at(inner, moved, delta), {**info, "delta": delta}

    def _at(self, inner: Phase, beta: Tensor, delta: Tensor) -> TemperedState:
        """log p(z, β) = log q(z) − β Δ(z)"""
        assert self.density.target.base is not None
        log_prob = self.density.target.base.finite_log_prob(inner.position) - beta * delta
        return TemperedState(torch.cat([inner.position, beta[..., None]], -1), log_prob, inner)
