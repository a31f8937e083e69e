"""Approximate Bayesian computation: outputs near what was observed, in place of equal to it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.internal.checks import at_least, choose, whole
from hmcvi.internal.seeds import generator as seeded
from hmcvi.models.generator import Generator, Variables

Summary = Callable[[Tensor], Tensor]  # [..., N] -> [..., S]
BATCH = 10_000  # simulations at a time
FEW = 10  # effective draws below which weighted ones are not to be trusted


class Accepted(NamedTuple):
    """Draws of ABC rejection."""

    inputs: Tensor  # u  [draws, M]
    latent: Variables  # z, by name  [draws, ...]
    distance: Tensor  # |s(g(u)) − s(y)|  [draws]
    acceptance_rate: float
    num_simulations: int


class Weighted(NamedTuple):
    """Draws of the prior with the weights k_ε of their simulations."""

    inputs: Tensor  # u, of weight above zero  [draws, M]
    latent: Variables  # z, by name  [draws, ...]
    log_weight: Tensor  # log k_ε(s(y); s(g(u)))  [draws]
    log_evidence: float  # of what was observed, seen through k_ε
    num_simulations: int

    @property
    def effective_samples(self) -> float:
        """(Σ w)² / Σ w²"""
        return float((2 * self.log_weight.logsumexp(0) - (2 * self.log_weight).logsumexp(0)).exp())

    def mean(self, values: Tensor) -> Tensor:
        """Σ f(z_s) w_s / Σ w_s, of values f(z_s) [draws, ...].  [Graham 2018, (4.17)]"""
        return torch.tensordot(self.log_weight.softmax(0).to(values), values, 1)


def abc_density(
    generator: Generator,
    observed: Tensor,
    epsilon: float,
    kernel: str = "gaussian",
    summary: Summary | None = None,
) -> Density:
    """π_ε(u) = k_ε(s(y); s(g(u))) ρ(u), over the inputs; its evidence is the density of y seen through k_ε.

        k_ε(y; x) = N(y; x, ε² I)                   "gaussian", for every kernel
        k_ε(y; x) ∝ 1 where |y − x| < ε, else 0     "uniform", for those that need no gradient
        k_ε(y; x) ∝ 1 where max_i |y_i − x_i| < ε   "box", for the same
        k_ε(y; x) ∝ max(0, 1 − |y − x|²/ε²)         "epanechnikov", for every kernel, better without gradient

    observed: y [N], or one per chain [..., N].  summary: s, the outputs as they are if None.
    The base of the density is ρ.  [Graham 2018, (4.7), (4.8), (4.23)]
    """
    log_kernel = choose("kernel", kernel, KERNELS)
    target = _target(generator, observed, epsilon, summary)

    def log_prob(inputs: Variables, target: Tensor) -> Tensor:
        position = generator.layout.flatten(inputs)
        offset = _summarised(generator.observed(position), summary) - target
        return generator.density.finite_log_prob(position) + log_kernel(offset, epsilon)

    return Density(log_prob, target, base=generator.density, shapes=generator.layout.shapes)


def abc_rejection(
    generator: Generator,
    observed: Tensor,
    epsilon: float,
    num_samples: int,
    summary: Summary | None = None,
    seed: int = 0,
    max_simulations: int = 10_000_000,
) -> Accepted:
    """Independent draws u ~ ρ, those kept for which |s(g(u)) − s(y)| < ε.  [Graham 2018, (4.19)]

    It ends with `num_samples` draws or after `max_simulations`: then with fewer and a warning, or, with none
    at all, an error that says how near the nearest came.
    """
    at_least(1, num_samples=num_samples, max_simulations=max_simulations)
    target = _one_target(generator, observed, epsilon, summary)
    rng, kept, nearest = seeded(seed), [], math.inf
    num_simulations = num_kept = 0
    while num_kept < num_samples and num_simulations < max_simulations:
        inputs = generator.sample(min(BATCH, max_simulations - num_simulations), generator=rng)
        offset = _offset(generator, inputs, target, summary)
        distance = offset.norm(dim=-1)
        near = distance < epsilon
        kept.append((inputs[near], distance[near]))
        nearest = min(nearest, float(distance.nan_to_num(math.inf).min()))
        num_simulations, num_kept = num_simulations + len(inputs), num_kept + int(near.sum())
    if num_kept == 0:
        raise _none_came_near(num_simulations, epsilon, nearest)
    if num_kept < num_samples:
        warnings.warn(
            f"only {num_kept} of {num_samples} draws were accepted in {num_simulations} simulations: take a "
            "larger epsilon or more simulations",
            RuntimeWarning,
            stacklevel=2,
        )
    inputs, distance = (torch.cat(parts)[:num_samples] for parts in zip(*kept, strict=True))
    return Accepted(inputs, generator.latent(inputs), distance, num_kept / num_simulations, num_simulations)


def abc_importance(
    generator: Generator,
    observed: Tensor,
    epsilon: float,
    num_simulations: int = 100_000,
    kernel: str = "gaussian",
    summary: Summary | None = None,
    seed: int = 0,
) -> Weighted:
    """Independent draws u ~ ρ with weights k_ε(s(y); s(g(u))), all that have one.  [Graham 2018, (4.17)]

    kernel: as in `abc_density`.  `result.mean(result.latent["z"])` estimates an expectation under the ABC
    posterior; with "uniform" it is that of `abc_rejection`.  A warning says if a few have all the weight.
    """
    log_kernel = choose("kernel", kernel, KERNELS)
    target = _one_target(generator, observed, epsilon, summary)
    rng, kept, nearest = seeded(seed), [], math.inf
    remaining = whole("num_simulations", num_simulations, 1)
    while remaining > 0:
        inputs = generator.sample(min(BATCH, remaining), generator=rng)
        offset = _offset(generator, inputs, target, summary)
        log_weight = log_kernel(offset, epsilon)
        weighs = log_weight.isfinite()
        kept.append((inputs[weighs], log_weight[weighs]))
        nearest = min(nearest, float(offset.norm(dim=-1).nan_to_num(math.inf).min()))
        remaining -= len(inputs)
    inputs, log_weight = (torch.cat(parts) for parts in zip(*kept, strict=True))
    if len(inputs) == 0:
        raise _none_came_near(num_simulations, epsilon, nearest)
    log_evidence = float(log_weight.logsumexp(0)) - math.log(num_simulations)
    result = Weighted(inputs, generator.latent(inputs), log_weight, log_evidence, num_simulations)
    if result.effective_samples < FEW:
        warnings.warn(
            f"{num_simulations} simulations weigh as much as {result.effective_samples:.3g} draws: take a "
            "larger epsilon, summaries, more simulations, or abc_density and a kernel",
            RuntimeWarning,
            stacklevel=2,
        )
    return result


def _one_target(generator: Generator, observed: Tensor, epsilon: float, summary: Summary | None) -> Tensor:
    """s(y) of a single observation.  [N] -> [S]"""
    target = _target(generator, observed, epsilon, summary)
    if target.ndim > 1:
        raise ValueError(f"draws of the prior take one observation, got {list(observed.shape)}")
    return target


@torch.no_grad()
def _offset(generator: Generator, inputs: Tensor, target: Tensor, summary: Summary | None) -> Tensor:
    """s(g(u)) − s(y)  [..., M] -> [..., S]"""
    return _summarised(generator.observed(inputs), summary) - target


def _none_came_near(num_simulations: int, epsilon: float, nearest: float) -> ValueError:
    return ValueError(
        f"none of {num_simulations} simulations came within epsilon = {epsilon:g} of what was observed, "
        f"the nearest within {nearest:.3g}: take a larger epsilon, summaries, or abc_density and a kernel"
    )


def _target(generator: Generator, observed: Tensor, epsilon: float, summary: Summary | None) -> Tensor:
    """s(y), what simulations have to come near to.  [..., N] -> [..., S]"""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    if observed.ndim == 0 or observed.shape[-1] != generator.num_observed:
        raise ValueError(
            f"the generator has {generator.num_observed} outputs, observed has shape {list(observed.shape)}"
        )
    target = _summarised(observed.detach().to(torch.float64), summary)
    if target.ndim != observed.ndim:
        raise ValueError(
            f"summary must return vectors [..., S], got {list(target.shape)} for {list(observed.shape)}"
        )
    if not target.isfinite().all():
        raise ValueError("what was observed, and its summaries, must be finite")
    return target


def _summarised(outputs: Tensor, summary: Summary | None) -> Tensor:
    return outputs if summary is None else summary(outputs)


def _log_gaussian(offset: Tensor, epsilon: float) -> Tensor:
    """log N(offset; 0, ε² I)  [..., S] -> [...]"""
    size = offset.shape[-1]
    return -0.5 * (offset / epsilon).square().sum(-1) - size * math.log(epsilon * math.sqrt(2 * math.pi))


def _log_ball(offset: Tensor, epsilon: float) -> Tensor:
    """−log of the volume within ε of zero, −inf beyond.  [..., S] -> [...]"""
    return _inside(offset.detach().norm(dim=-1) < epsilon, offset) - _log_volume(offset.shape[-1], epsilon)


def _log_box(offset: Tensor, epsilon: float) -> Tensor:
    """−S log 2ε where no coordinate is further than ε from zero, −inf elsewhere.  [..., S] -> [...]"""
    within = (offset.detach().abs() < epsilon).all(-1)
    return _inside(within, offset) - offset.shape[-1] * math.log(2 * epsilon)


def _log_epanechnikov(offset: Tensor, epsilon: float) -> Tensor:
    """log (1 − |offset|²/ε²), whose integral is 2/(S + 2) of the volume, −inf beyond.  [..., S] -> [...]"""
    size, square = offset.shape[-1], (offset / epsilon).square().sum(-1)
    within = square < 1
    bump = torch.log1p(-square.where(within, 0.0)).where(within, -torch.inf)
    return bump - _log_volume(size, epsilon) - math.log(2 / (size + 2))


def _inside(within: Tensor, offset: Tensor) -> Tensor:
    """0 or −inf"""
    return torch.zeros_like(offset[..., 0]).where(within, -torch.inf)


def _log_volume(size: int, epsilon: float) -> float:
    """log π^{S/2} ε^S / Γ(S/2 + 1)"""
    return size * math.log(epsilon) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size + 1)


KERNELS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "gaussian": _log_gaussian,
    "uniform": _log_ball,
    "box": _log_box,
    "epanechnikov": _log_epanechnikov,
}
