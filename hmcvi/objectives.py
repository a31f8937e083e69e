"""Bounds on log Z from log-weights, with gradients that random acceptance leaves unbiased."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hmcvi.chain import Weights
from hmcvi.density import Density
from hmcvi.internal.checks import one_of


def power_mean(log_weight: Tensor, power: float) -> Tensor:
    """(1/s) log mean_k exp(s · log w_k), over the first dimension; s = 0 is the mean.  [K, ...] -> [...]

    >>> power_mean(torch.tensor([0.0, 2.0]), 0.0).item()
    1.0
    """
    if power == 0:
        return log_weight.mean(0)
    powers = _without_negligible(power * log_weight)
    return (torch.logsumexp(powers, 0) - math.log(len(log_weight))) / power


def _without_negligible(log_weight: Tensor) -> Tensor:
    """−∞ for weights below ε² of the largest, far less than rounding (ε of the dtype).  [K, ...]

    Their gradients would be denormal numbers, with which processors multiply ten times as slowly.
    """
    floor = log_weight.detach().amax(0) + 2 * math.log(torch.finfo(log_weight.dtype).eps)
    return log_weight.masked_fill(log_weight < floor, -torch.inf)


class Bound(nn.Module):
    """The Rényi bound of order α on log Z from K weights; α = 1 is the ELBO, α = 0 the IWAE bound.

        L = (1/(1−α)) log mean_k w_k^{1−α}

    The gradient is pathwise plus, for chains that accept or reject, the score term
    Σ_k (L − b_k) ∇log_choice_k, which makes it unbiased; acceptance_gradient="pathwise" leaves it out, as
    Wolf et al. 2016 do.  The baseline b_k is independent
    of the acceptances of chain k: it is L of the other chains, or for K = 1 the initial weight plus a
    running mean of what the chain adds to it.  [Burda et al. 2016; Li & Turner 2016; Mnih & Rezende 2016]

    pool: sums the terms of that mean over the processes that share a batch.
    gradient: "total", or "dreg", doubly reparameterised (see `doubly_reparameterised`).
    known_entropies: whether the value of the ELBO leaves out the zero-mean noise of its draws.  Where q is
    far from the posterior that lowers its variance; near it log q and log γ vary together, and leaving out
    one of them costs.  The gradient is the same.  [Wolf et al. 2016, §4.5.2]
    """

    running_gain: Tensor
    num_updates: Tensor

    def __init__(
        self,
        alpha: float = 1.0,
        acceptance_gradient: str = "score",
        decay: float = 0.99,
        gradient: str = "total",
        known_entropies: bool = False,
    ) -> None:
        super().__init__()
        one_of("gradient", gradient, ("total", "dreg"))
        if acceptance_gradient not in ("score", "pathwise"):
            raise ValueError(
                f"acceptance_gradient must be 'score' or 'pathwise', got {acceptance_gradient!r}"
            )
        if not 0 <= decay < 1:
            raise ValueError(f"the decay of the baseline must lie in [0, 1), got {decay}")
        self.power = 1.0 - alpha
        self.acceptance_gradient, self.decay, self.gradient = acceptance_gradient, decay, gradient
        self.known_entropies = known_entropies
        self.pool: Callable[[Tensor], Tensor] = lambda sums: sums
        self.register_buffer("running_gain", torch.zeros(()))
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.long))

    def forward(self, weights: Weights) -> Tensor:
        """[K, ...] -> [...]"""
        # a failed chain has weight zero and no gradient, even where parts of it are finite
        log_weight = weights.log_weight.where(weights.log_weight.isfinite(), -torch.inf)
        if self.gradient == "dreg" and log_weight.requires_grad:
            return doubly_reparameterised(weights._replace(log_weight=log_weight), self.power)
        value = log_weight - weights.noise if self.power == 0 and self.known_entropies else log_weight
        bound = power_mean(value, self.power)
        if self.acceptance_gradient == "score" and weights.log_choice.requires_grad:
            signal = self._signal(log_weight.detach(), weights.initial)
            signal = signal.where(signal.isfinite(), 0.0)
            score = (signal * weights.log_choice).sum(0)
            bound = bound + score - score.detach()
        return bound

    def _signal(self, log_weight: Tensor, initial: Tensor | None) -> Tensor:
        """L − b_k  [K, ...]"""
        if len(log_weight) > 1:
            return power_mean(log_weight, self.power) - leave_one_out(log_weight, self.power)
        gain = log_weight if initial is None else log_weight - initial
        signal = gain - self.running_gain
        if self.training:
            finite = gain[gain.isfinite()]
            total, count = self.pool(torch.stack([finite.sum(), torch.ones_like(finite).sum()]))
            if count:
                weight = max(1 - self.decay, 1 / (int(self.num_updates) + 1))
                self.running_gain += weight * (total / count - self.running_gain)
                self.num_updates += 1
        return signal


def leave_one_out(log_weight: Tensor, power: float) -> Tensor:
    """The power mean of all chains but the k-th, for each k.  [K, ...] -> [K, ...]"""
    others = torch.stack(
        [torch.cat([log_weight[:k], log_weight[k + 1 :]]) for k in range(len(log_weight))], 1
    )
    return power_mean(others, power)


def doubly_reparameterised(weights: Weights, power: float) -> Tensor:
    """The power mean L of order s with a gradient of lower variance, as unbiased.  [K, ...] -> [...]

    Let log w = log p(z0, ξ; θ) − log q0(z0; φ), with z0 = z0(n; φ) and n, ξ the random numbers of the start
    and of the chain: p holds the target and all steps.  Then with ω = softmax(s log w)

        ∇L = Σ_k ω_k ∇log p|_{z0}  +  Σ_k ((1−s) ω_k + s ω_k²) (∂log w / ∂z0)ᵀ ∇z0,

    because E[ω_k ∇log q0] is reparameterised once more.  At s = 1 the gradient in φ keeps its signal as K
    grows; at s = 0 it is the path derivative of the ELBO.  What θ, or φ by way of p, adds is as it was.
    [Tucker et al. 2019; Roeder et al. 2017]
    """
    position, log_q0, base = _origin(weights)
    alive = weights.log_weight.isfinite()
    share = _without_negligible(power * weights.log_weight.detach()).softmax(0)
    if power == 0:
        share = torch.full_like(share, 1 / len(share))
    share = share.where(alive, 0.0)
    path_share = (1 - power) * share + power * share.square()
    log_p = (weights.log_weight + log_q0).where(alive, 0.0)
    (chain_slope,) = torch.autograd.grad(log_p.sum(), position, retain_graph=True)
    base_slope = base.value_and_grad(position.detach())[1].detach()
    pull = (path_share - share)[..., None] * chain_slope - path_share[..., None] * base_slope
    surrogate = (share * log_p).sum(0) + (pull * position).sum((0, -1))
    return power_mean(weights.log_weight.detach(), power) + surrogate - surrogate.detach()


def _origin(weights: Weights) -> tuple[Tensor, Tensor, Density]:
    """z0, log q0(z0) and q0, refused where z0 has no parameters or something else is random."""
    if weights.log_choice.any():
        raise ValueError(
            "gradient='dreg' is not for chains that accept or reject, whose choices are not reparameterised: "
            "use gradient='total'"
        )
    origin = weights.origin
    if origin is None or origin.base is None or not origin.position.requires_grad:
        raise ValueError(
            "gradient='dreg' is for the distribution q0 of initial states: it needs draws of a q0 with "
            "learned parameters and a target with base=q0; use gradient='total'"
        )
    return origin.position, origin.log_q0, origin.base


def elbo(weights: Weights) -> Tensor:
    """The ELBO mean_k log w_k.  [K, ...] -> [...]"""
    return Bound(alpha=1.0)(weights)


def iwae(weights: Weights) -> Tensor:
    """The IWAE bound log mean_k w_k.  [K, ...] -> [...]"""
    return Bound(alpha=0.0)(weights)
