"""The densities of the kernel benchmark, for torch and for JAX: the same numbers for every engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAPFROGS = 10
IMAGES, PIXELS, LATENT, HIDDEN = 1000, 784, 20, 200
ROWS, COLUMNS = 1000, 30


@dataclass(frozen=True)
class Problem:
    """A target; `per_chain` has one row for each chain that makes its density a different one."""

    dim: int
    step_size: float
    constants: tuple[np.ndarray, ...]
    per_chain: np.ndarray | None
    start_scale: float

    def start(self, chains: int) -> np.ndarray:
        """Starting points [chains, d]."""
        draws = np.random.default_rng(1).normal(size=(chains, self.dim))
        return (self.start_scale * draws).astype(np.float32)


def _decoder() -> Problem:
    rng = np.random.default_rng(0)
    sizes = ((LATENT, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, PIXELS))
    weights = tuple(0.1 * rng.normal(size=size).astype(np.float32) for size in sizes)
    images = (rng.random((IMAGES, PIXELS)) < 0.3).astype(np.float32)
    return Problem(LATENT, 0.05, weights, images, start_scale=1.0)


def _logistic() -> Problem:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    probability = 1 / (1 + np.exp(-rows @ (0.5 * rng.normal(size=COLUMNS))))
    labels = (rng.random(ROWS) < probability).astype(np.float32)
    return Problem(COLUMNS, 0.03, (rows, labels), None, start_scale=0.1)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "decoder": _decoder,
    "logistic": _logistic,
    "normal10": lambda: Problem(10, 0.3, (), None, start_scale=1.0),
    "normal100": lambda: Problem(100, 0.3, (), None, start_scale=1.0),
}


def torch_log_prob(name: str, problem: Problem) -> Callable[..., Any]:
    """log_prob(z: [..., d], *per_chain) -> [...]"""
    import torch
    from torch.nn.functional import softplus

    if name == "decoder":
        first, second, third = map(torch.from_numpy, problem.constants)

        def decoder(z: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
            logits = softplus(softplus(z @ first) @ second) @ third
            return (image * logits - softplus(logits)).sum(-1) - 0.5 * z.square().sum(-1)

        return decoder
    if name == "logistic":
        rows, labels = map(torch.from_numpy, problem.constants)
        columns = rows.t().contiguous()

        def logistic(z: torch.Tensor) -> torch.Tensor:
            logits = z @ columns
            return (labels * logits - softplus(logits)).sum(-1) - 0.5 * z.square().sum(-1)

        return logistic
    return lambda z: -0.5 * z.square().sum(-1)


def jax_log_prob(name: str, problem: Problem) -> Callable[..., Any]:
    """log_prob(z: [d], *per_chain) -> [], for vmap."""
    import jax.numpy as jnp
    from jax.nn import softplus

    if name == "decoder":
        first, second, third = map(jnp.array, problem.constants)

        def decoder(z: Any, image: Any) -> Any:
            logits = softplus(softplus(z @ first) @ second) @ third
            return jnp.sum(image * logits - softplus(logits)) - 0.5 * jnp.sum(z * z)

        return decoder
    if name == "logistic":
        rows, labels = map(jnp.array, problem.constants)

        def logistic(z: Any) -> Any:
            logits = rows @ z
            return jnp.sum(labels * logits - softplus(logits)) - 0.5 * jnp.sum(z * z)

        return logistic
    return lambda z: -0.5 * jnp.sum(z * z)
