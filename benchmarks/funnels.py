"""Posteriors whose scales change from place to place, sampled as they come by the defaults.

16 chains from uniform(−2, 2), 500 transitions of warm-up and 500 draws: once with the coordinates that
warm-up learns, once without, and in the non-centred coordinates that a textbook gives, as a reference.
One record for each run: R-hat, effective draws and gradients, mean and standard deviation of the log scale.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.measuring import Record, quickly
from benchmarks.sampler_hierarchies import EFFECTS, ERRORS

if TYPE_CHECKING:
    from torch import Tensor

CHAINS, WARMUP, DRAWS = 16, 500, 500
COUNTS = [3.0, 1.0, 4.0, 2.0, 0.0, 3.0]
PERSISTENCE, TIMES = 0.9, 20  # of log volatilities


class Funnel(NamedTuple):
    """A density of z = (μ, log τ, θ), or (log τ, θ) without a location."""

    log_prob: Callable[[Tensor], Tensor]
    dim: int
    located: bool = True
    slope: float = 1.0  # of log scales by the second coordinate


def neal() -> Funnel:
    """v ~ N(0, 3²), nine x ~ N(0, e^v).  [Neal 2003]"""

    def log_prob(z: Tensor) -> Tensor:
        v, x = z[..., 0], z[..., 1:]
        return -0.5 * (v.square() / 9 + x.square().sum(-1) * (-v).exp() + 9 * v)

    return Funnel(log_prob, 10, located=False, slope=0.5)


def centred_schools() -> Funnel:
    """y ~ N(θ, σ²), θ ~ N(μ, τ²), μ ~ N(0, 5²), τ ~ C⁺(0, 5)."""
    import torch

    effects, errors = torch.tensor(EFFECTS), torch.tensor(ERRORS)

    def log_prob(z: Tensor) -> Tensor:
        mu, log_tau, theta = z[..., 0], z[..., 1], z[..., 2:]
        prior = log_tau - (log_tau.exp() / 5).square().log1p() - 0.5 * (mu / 5).square()
        return prior + normal(theta, mu, log_tau) - 0.5 * ((effects - theta) / errors).square().sum(-1)

    return Funnel(log_prob, 10)


def centred_counts() -> Funnel:
    """Six counts with log rates θ ~ N(μ, τ²), μ ~ N(0, 3²), τ ~ N⁺(0, 1)."""
    import torch

    counts = torch.tensor(COUNTS)

    def log_prob(z: Tensor) -> Tensor:
        mu, log_tau, theta = z[..., 0], z[..., 1], z[..., 2:]
        prior = log_tau - 0.5 * (2 * log_tau).exp() - 0.5 * (mu / 3).square()
        return prior + normal(theta, mu, log_tau) + (counts * theta - theta.exp()).sum(-1)

    return Funnel(log_prob, 2 + len(COUNTS))


def volatility() -> Funnel:
    """Returns y_t ~ N(0, e^{h_t}), h − μ a stationary autoregression with innovations of size e^s."""
    import torch

    returns = 0.8 * torch.randn(TIMES, generator=torch.Generator().manual_seed(5))

    def log_prob(z: Tensor) -> Tensor:
        mu, log_size, h = z[..., 0], z[..., 1], z[..., 2:]
        gap = h - mu[..., None]
        innovations = (gap[..., 1:] - PERSISTENCE * gap[..., :-1]).square().sum(-1)
        squares = innovations + (1 - PERSISTENCE**2) * gap[..., 0].square()
        prior = -0.5 * (mu / 2).square() - 0.5 * (log_size + 1).square()
        likelihood = -0.5 * (h + returns.square() * (-h).exp()).sum(-1)
        return prior - 0.5 * squares * (-2 * log_size).exp() - TIMES * log_size + likelihood

    return Funnel(log_prob, 2 + TIMES)


FUNNELS = {f.__name__: f for f in (neal, centred_schools, centred_counts, volatility)}


def normal(theta: Tensor, mu: Tensor, log_tau: Tensor) -> Tensor:
    """log N(θ; μ, τ²), up to a constant."""
    squares = (theta - mu[..., None]).square().sum(-1)
    return -0.5 * squares * (-2 * log_tau).exp() - theta.shape[-1] * log_tau


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problems", nargs="*", choices=FUNNELS, default=list(FUNNELS))
    parser.add_argument("--repeats", type=int, default=1, help="seeds; default: %(default)s")
    quickly(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    import torch

    torch.set_default_dtype(torch.float64)
    for name in args.problems[: 1 if args.quick else None]:
        for seed in range(args.repeats):
            for how in ("learned", "none", "textbook"):
                yield {"problem": name, "coordinates": how, "seed": seed, **one(FUNNELS[name](), how, seed)}


def one(funnel: Funnel, how: str, seed: int) -> Record:

    import hmcvi
    from hmcvi.sampling.convergence import bulk_ess, rhat

    coordinates = textbook(funnel) if how == "textbook" else None
    kernel = hmcvi.kernels.HMC(hmcvi.Density(funnel.log_prob, dim=funnel.dim), 0.1, coordinates=coordinates)
    warmup = hmcvi.Warmup(noncentring=how == "learned")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", hmcvi.SamplingWarning)
        draws = hmcvi.sample(
            kernel, None, DRAWS, WARMUP, seed=seed, num_chains=CHAINS, progress=False, warmup=warmup
        )
    position = draws.position
    log_scale = position[..., int(funnel.located)]
    gradients = int(draws.stats["num_gradients"].sum())
    ess = float(bulk_ess(position).min())
    return {
        "rhat": round(float(rhat(position).max()), 4),
        "ess": round(ess),
        "gradients": gradients,
        "ess_per_1000_gradients": round(1000 * ess / gradients, 1),
        "log_scale": [round(float(log_scale.mean()), 3), round(float(log_scale.std()), 3)],
        "log_scale_error": round(float(log_scale.std() / bulk_ess(log_scale[..., None])[0].sqrt()), 3),
        "said": "; ".join(str(warning.message) for warning in caught),
    }


def textbook(funnel: Funnel) -> object:
    """θ = μ + e^{slope · log τ} y."""
    import torch

    from hmcvi.dynamics.noncentring import Noncentring

    parents = [1, 0] if funnel.located else [0]
    slopes = torch.zeros(2, funnel.dim, len(parents))
    slopes[1, len(parents) :, 0] = funnel.slope
    if funnel.located:
        slopes[0, 2:, 1] = 1.0
    zeros = torch.zeros(funnel.dim)
    return Noncentring(torch.tensor(parents), zeros, slopes[0], zeros, slopes[1])
