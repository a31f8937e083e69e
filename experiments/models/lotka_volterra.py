"""Predators and prey: a stochastic differential equation, simulated by the Euler–Maruyama scheme."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hmcvi.models.generator import Generator, Variables
from hmcvi.models.inputs import Normal, log_normal

TRUTH = (0.4, 0.005, 0.05, 0.001)  # of the data in the thesis
LARGEST = 1e5  # population; beyond it simulations are left out of the spread of the summaries


def lotka_volterra(
    num_steps: int = 50,
    initial: tuple[float, float] = (100.0, 100.0),
    time_step: float = 1.0,
    noise: float = 1.0,
    eats_new_prey: bool = False,
) -> Generator:
    """dr = (z₁ r − z₂ r f) dt + dn_r,  df = (z₄ r f − z₃ f) dt + dn_f,  log z ~ N(−2, 1).  (4.66, 4.67)

    Observed are r₁, f₁, r₂, f₂, …, all of the `num_steps` steps.  The inputs are four for z and two for the
    noise of each step.  eats_new_prey: f_s grows with the prey r_s already found, not with r_{s−1}.
    """
    scale = noise * math.sqrt(time_step)

    def latent(v: Variables) -> Variables:
        return dict(zip(("z1", "z2", "z3", "z4"), log_normal(v["z"], -2.0, 1.0).unbind(-1), strict=True))

    def grow(z: Variables, prey: Tensor, predators: Tensor) -> Tensor:
        return prey + time_step * prey * (z["z1"] - z["z2"] * predators)

    def hunt(z: Variables, prey: Tensor, predators: Tensor) -> Tensor:
        return predators + time_step * predators * (z["z4"] * prey - z["z3"])

    def observe(v: Variables) -> Tensor:
        z, steps = latent(v), v["n"].unflatten(-1, (num_steps, 2)) * scale
        prey, predators = (torch.full_like(z["z1"], size) for size in initial)
        path = []
        for noise_prey, noise_predators in (step.unbind(-1) for step in steps.unbind(-2)):
            new_prey = grow(z, prey, predators) + noise_prey
            food = new_prey if eats_new_prey else prey
            prey, predators = new_prey, hunt(z, food, predators) + noise_predators
            path += [prey, predators]
        return torch.stack(path, -1)

    def conditional(v: Variables, observed: Tensor) -> Tensor:
        z = {name: value[..., None] for name, value in latent(v).items()}
        now = observed.unflatten(-1, (num_steps, 2))
        start = observed.new_tensor(initial).expand_as(now[..., :1, :])
        prey, predators = torch.cat([start, now[..., :-1, :]], -2).unbind(-1)
        food = now[..., 0] if eats_new_prey else prey
        mean = torch.stack([grow(z, prey, predators), hunt(z, food, predators)], -1)
        return mean.flatten(-2) + scale * v["n"]

    inputs = {"z": Normal(4), "n": Normal(2 * num_steps)}
    return Generator(inputs, observe, latent, "autoregressive", conditional)


def summaries(observed: Tensor) -> Tensor:
    """Means, log variances, autocorrelations of lags 1 and 2, and the correlation of r and f.

    [..., 2 N_s] -> [..., 9]   [Papamakarios & Murray 2016]
    """
    path = observed.unflatten(-1, (-1, 2)).mT  # [..., 2, N_s]
    mean = path.mean(-1)
    centred = path - mean[..., None]
    variance = centred.square().mean(-1)
    normed = centred / variance.sqrt()[..., None]
    num_steps = path.shape[-1]
    lags = [(normed[..., k:] * normed[..., :-k]).sum(-1) / num_steps for k in (1, 2)]
    cross = (normed[..., 0, :] * normed[..., 1, :]).mean(-1, keepdim=True)
    return torch.cat([mean, variance.log(), *lags, cross], -1)


@torch.no_grad()
def spread_of_summaries(generator: Generator, num_simulations: int, seed: int = 0) -> Tensor:
    """Standard deviations under the prior, of simulations that stay finite and below 10⁵.  [9]"""
    rng, kept = torch.Generator().manual_seed(seed), []
    for size in torch.arange(num_simulations).split(10_000):
        path = generator.observed(generator.sample(len(size), generator=rng))
        kept.append(summaries(path[(path.abs() < LARGEST).all(-1)]))
    values = torch.cat(kept)
    values = values[values.isfinite().all(-1)]
    if len(values) < 2:
        raise ValueError(f"of {num_simulations} simulations {len(values)} stayed small: make more")
    return values.std(0)
