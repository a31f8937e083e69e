"""Approximate Bayesian computation: outputs near what was observed, in place of equal to it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.internal.checks import at_least, one_of
from hmcvi.internal.seeds import generator as seeded
from hmcvi.models.generator import Generator, Variables

Summary = Callable[[Tensor], Tensor]  # [..., N] -> [..., S]
KERNELS = ("gaussian", "uniform")
BATCH = 10_000  # simulations at a time


class Accepted(NamedTuple):
    """Draws of ABC rejection."""

    inputs: Tensor  # u  [draws, M]
    latent: Variables  # z, by name  [draws, ...]
    distance: Tensor  # |s(g(u)) − s(y)|  [draws]
    acceptance_rate: float
    num_simulations: int


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

    observed: y [N], or one per chain [..., N].  summary: s, the outputs as they are if None.
    The base of the density is ρ.  [Graham 2018, (4.7), (4.8), (4.23)]
    """
    one_of("kernel", kernel, KERNELS)
    target = _target(generator, observed, epsilon, summary)
    log_kernel = _log_gaussian if kernel == "gaussian" else _log_ball

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
    target = _target(generator, observed, epsilon, summary)
    if target.ndim > 1:
        raise ValueError(f"rejection takes one observation, got {list(observed.shape)}")
    rng, kept, nearest = seeded(seed), [], math.inf
    num_simulations = num_kept = 0
    while num_kept < num_samples and num_simulations < max_simulations:
        inputs = generator.sample(min(BATCH, max_simulations - num_simulations), generator=rng)
        with torch.no_grad():
            offset = _summarised(generator.observed(inputs), summary) - target
        distance = offset.norm(dim=-1)
        near = distance < epsilon
        kept.append((inputs[near], distance[near]))
        nearest = min(nearest, float(distance.nan_to_num(math.inf).min()))
        num_simulations, num_kept = num_simulations + len(inputs), num_kept + int(near.sum())
    if num_kept == 0:
        raise ValueError(
            f"none of {num_simulations} simulations came within epsilon = {epsilon:g} of what was observed, "
            f"the nearest within {nearest:.3g}: take a larger epsilon, summaries, or abc_density and a kernel"
        )
    if num_kept < num_samples:
        warnings.warn(
            f"only {num_kept} of {num_samples} draws were accepted in {num_simulations} simulations: take a "
            "larger epsilon or more simulations",
            RuntimeWarning,
            stacklevel=2,
        )
    inputs, distance = (torch.cat(parts)[:num_samples] for parts in zip(*kept, strict=True))
    return Accepted(inputs, generator.latent(inputs), distance, num_kept / num_simulations, num_simulations)


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
    """−log of the volume π^{S/2} ε^S / Γ(S/2 + 1) within ε of zero, −inf beyond.  [..., S] -> [...]"""
    size = offset.shape[-1]
    log_volume = size * math.log(epsilon) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size + 1)
    within = offset.detach().norm(dim=-1) < epsilon
    return torch.zeros_like(offset[..., 0]).where(within, -torch.inf) - log_volume
