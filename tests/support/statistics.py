"""One false-alarm rate for all statistical tests: a comparison fails beyond Z standard errors.

A two-sided deviation of 4.5 standard errors has probability 7e-6, so a suite of a thousand comparisons
that are all true fails once in 150 choices of its seeds.  The seeds are fixed; they are never searched.
"""

from __future__ import annotations

import torch
from torch import Tensor

Z = 4.5


def mean_and_error(samples: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over the first dimension and its standard error.  [N, ...] -> [...], [...]"""
    return samples.mean(0), samples.std(0) / len(samples) ** 0.5


def assert_mean(samples: Tensor, expected: Tensor | float) -> None:
    """E[samples] = expected, for every entry.  samples: [N, ...]"""
    mean, error = mean_and_error(samples)
    deviation = (mean - expected).abs()
    assert (deviation <= Z * error).all(), f"{deviation / error} standard errors from {expected}"


def assert_evidence(log_weight: Tensor, log_evidence: Tensor | float, least_ess: float = 1000.0) -> None:
    """E[w] = Z and E[log w] ≤ log Z.  log_weight: [N, ...]; log_evidence: [...]

    The error bar of the mean is worth something only if no few samples carry it: hence least_ess.
    """
    assert not log_weight.isnan().any()
    share = log_weight.softmax(0)
    ess = 1 / share.square().sum(0)
    assert (ess >= least_ess).all(), f"the error bar rests on {ess} effective samples"
    estimate = log_weight.logsumexp(0) - torch.tensor(float(len(log_weight))).log()
    error = (1 / ess - 1 / len(log_weight)).sqrt()
    deviation = (estimate - log_evidence).abs()
    assert (deviation <= Z * error + 1e-12).all(), f"log E[w] is {deviation / error} standard errors off"
    bound, bound_error = mean_and_error(log_weight)
    assert (bound <= log_evidence + Z * bound_error + 1e-12).all()


def assert_uniform(u: Tensor) -> None:
    """u ~ U(0, 1): the first four Legendre polynomials of 2u − 1 have mean zero.  u: [N, ...]"""
    x = 2 * u - 1
    legendre = (
        x,
        (3 * x**2 - 1) / 2,
        (5 * x**3 - 3 * x) / 2,
        (35 * x**4 - 30 * x**2 + 3) / 8,
    )
    for degree, polynomial in enumerate(legendre, start=1):
        error = ((2 * degree + 1) * len(u)) ** -0.5
        deviation = polynomial.mean(0).abs() / error
        assert (deviation <= Z).all(), f"degree {degree}: {deviation} standard errors from uniform"


def assert_independent(u: Tensor) -> None:
    """Pairs of uniforms: E[p(u_i) q(u_j)] = 0 for p, q the first two Legendre polynomials.  u: [N, k]"""
    x = 2 * u - 1
    scores = torch.cat([3**0.5 * x, 5**0.5 * (3 * x**2 - 1) / 2], -1)  # mean 0, variance 1
    products = scores.T @ scores / len(u)
    same = torch.arange(u.shape[-1]).repeat(2)
    deviation = products.abs().where(same[:, None] != same, 0.0) * len(u) ** 0.5
    assert (deviation <= Z).all(), f"{deviation.max()} standard errors from independent"
