"""One method on one simulator: draws of its parameters, what they are worth and what they cost."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hmcvi.kernels import ConstrainedHMC, Kernel
from hmcvi.models import Generator
from hmcvi.sampling import SamplingWarning, sample
from hmcvi.sampling.diagnostics import arviz


@dataclass(frozen=True)
class Method:
    """A kernel, how many transitions are thrown away and kept, and every how manieth is a draw."""

    kernel: Kernel
    num_burned: int
    num_samples: int
    thin: int = 1


@dataclass(frozen=True)
class Outcome:
    """parameters: {name: [chains, draws]}; seconds: of the processor, for the transitions that were kept."""

    parameters: dict[str, Tensor]
    seconds: float
    acceptance: float | None
    distance: float  # the largest |g(u) − y|_∞ of all draws
    end: Tensor  # positions after the last transition  [chains, M]

    def report(self) -> dict[str, Any]:
        chains, draws = next(iter(self.parameters.values())).shape
        return {
            "num_chains": chains,
            "num_draws": draws,
            "seconds": self.seconds,
            "acceptance_rate": self.acceptance,
            "largest_distance": self.distance,
            "parameters": {name: self._summary(values) for name, values in self.parameters.items()},
        }

    def _summary(self, values: Tensor) -> dict[str, float]:
        array = values.numpy()
        ess = float(arviz().ess(array))
        return {
            "mean": float(values.mean()),
            "standard_error": float(arviz().mcse(array)),
            "standard_deviation": float(values.std()),
            "r_hat": float(arviz().rhat(array)),
            "ess": ess,
            "ess_per_second": ess / self.seconds,
        }


def race(method: Method, generator: Generator, observed: Tensor, start: Tensor, seed: int) -> Outcome:
    """Draws from `start` [chains, M]; their distance is that of the simulations themselves."""
    kernel = method.kernel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)  # the report says how far they are from converged
        burned = sample(kernel, start, max(1, method.num_burned), seed=seed, progress=False, thin=1)
        begin = time.process_time()
        draws = sample(
            kernel,
            burned.position[:, -1],
            method.num_samples,
            thin=method.thin,
            seed=seed + 1,
            progress=False,
        )
        seconds = time.process_time() - begin
    rates = [value for name, value in draws.stats.items() if name.startswith("acceptance_rate")]
    distances = [(generator.observed(part) - observed).abs().amax() for part in draws.position.split(50, 1)]
    return Outcome(
        {name: values.clone() for name, values in generator.latent(draws.position).items()},
        seconds,
        float(torch.stack(rates).mean()) if rates else None,
        float(torch.stack(distances).max()),
        draws.position[:, -1].clone(),
    )


def exact_starts(kernel: ConstrainedHMC, num_chains: int, seed: int) -> Tensor:
    """Prior draws moved to the fibre, of four times as many those with the highest density.  [chains, M]"""
    position = kernel.find_initial(4 * num_chains, seed=seed, max_tries=1000)
    log_prob = kernel.init(position).log_prob
    assert log_prob is not None
    return position[log_prob.argsort(descending=True)[:num_chains]]


def settle(kernel: ConstrainedHMC, start: Tensor, num_transitions: int, seed: int) -> Tensor:
    """Where chains are after some transitions that are no draws.  [chains, M]"""
    state, generator = kernel.init(start), torch.Generator().manual_seed(seed)
    for _ in range(num_transitions):
        state, _ = kernel.step(state, generator)
    return state.position
