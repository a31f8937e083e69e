"""What a problem of the sampler benchmark is: a log density that torch and jax evaluate by the same lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = Any  # of numpy, torch or jax
Make = Callable[[Any], Callable[[Array], Array]]  # torch or jax.numpy -> log_prob(z: [..., d]) -> [...]


class Problem(NamedTuple):
    """A density on R^d.

    exact: means and standard deviations [d], where they are known; a long run of NumPyro gave the others.
    compared: the coordinates whose moments are finite enough to be compared.
    held_out: not looked at while warm-up was designed.
    """

    make: Make
    dim: int
    exact: tuple[np.ndarray, np.ndarray] | None = None
    compared: slice = slice(None)
    held_out: bool = False


def log_half_cauchy(xp: Any, log_scale: Array, width: float) -> Array:
    """log density of log s where s ~ C⁺(0, width), up to a constant."""
    return log_scale - xp.log1p(xp.square(xp.exp(log_scale) / width))


def log_half_normal(xp: Any, log_scale: Array, width: float) -> Array:
    """log density of log s where s ~ N⁺(0, width²), up to a constant."""
    return log_scale - 0.5 * xp.square(xp.exp(log_scale) / width)


def log_sigmoid(xp: Any, x: Array) -> Array:
    return -xp.logaddexp(-x, xp.zeros_like(x))


def recursion(xp: Any, ratio: Array, inputs: Array) -> Array:
    """The solution of x_t = ratio · x_{t−1} + u_t, x_0 = u_0, by doubling.  [...], [..., T] -> [..., T]"""
    x, lag, power = inputs, 1, ratio[..., None]
    while lag < inputs.shape[-1]:
        shifted = xp.concatenate([xp.zeros_like(x[..., :lag]), x[..., :-lag]], -1)
        x, lag, power = x + power * shifted, 2 * lag, power * power
    return x
