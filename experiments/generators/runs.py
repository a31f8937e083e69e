"""One method on one simulator: draws of its parameters, what they are worth and what they cost."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.generators.reference import Reference
from hmcvi.kernels import Kernel
from hmcvi.models import Generator
from hmcvi.sampling import SamplingWarning, sample
from hmcvi.sampling.diagnostics import arviz


@dataclass(frozen=True)
class Method:
    """A kernel, what it conditions on, and how many transitions warm it up and are kept, every `thin`-th."""

    kernel: Kernel
    generator: Generator
    observed: Tensor
    num_warmup: int
    num_samples: int
    thin: int = 1


@dataclass(frozen=True)
class Outcome:
    """parameters: {name: [chains, draws]}; seconds: of the processor."""

    parameters: dict[str, Tensor]
    seconds: float  # of the draws
    acceptance: float | None
    distance: float  # the largest |g(u) − y|_∞ of all draws
    position: Tensor  # [chains, draws, M]
    warmup_seconds: float | None = None
    step_size: float | None = None

    def report(self, reference: Reference | None = None) -> dict[str, Any]:
        chains, draws = next(iter(self.parameters.values())).shape
        return {
            "num_chains": chains,
            "num_draws": draws,
            "seconds": self.seconds,
            "warmup_seconds": self.warmup_seconds,
            "acceptance_rate": self.acceptance,
            "step_size": self.step_size,
            "largest_distance": self.distance,
            "parameters": {name: self._summary(name, reference) for name in self.parameters},
        }

    def _summary(self, name: str, reference: Reference | None) -> dict[str, float]:
        """deviation: from the mean of the reference, in standard errors of both."""
        values = self.parameters[name]
        array, mean = values.numpy(), float(values.mean())
        with np.errstate(divide="ignore", invalid="ignore"):  # chains that never moved
            ess, error, r_hat = (
                float(measure(array)) for measure in (arviz().ess, arviz().mcse, arviz().rhat)
            )
        summary = {
            "mean": mean,
            "standard_error": error,
            "standard_deviation": float(values.std()),
            "r_hat": r_hat,
            "ess": ess,
            "ess_per_second": ess / self.seconds,
        }
        if reference is not None:
            exact = reference.summary(name)
            summary["deviation"] = (mean - exact["mean"]) / math.hypot(error, exact["standard_error"])
        return summary


def race(method: Method, start: Tensor, seed: int) -> Outcome:
    """Draws from `start` [chains, M] on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)  # the report says how far they are from converged
        begin = time.process_time()
        first = sample(method.kernel, start, 1, method.num_warmup, method.thin, seed, progress=False)
        warm = time.process_time()
        draws = first.resume(method.num_samples, progress=False)
        seconds = time.process_time() - warm
    position = draws.position[:, 1:]
    rates = [value for name, value in draws.stats.items() if name.startswith("acceptance_rate")]
    generator, observed = method.generator, method.observed
    distances = [(generator.observed(part) - observed).abs().amax() for part in position.split(50, 1)]
    step_size = getattr(draws.kernel, "step_size", None)
    return Outcome(
        {name: values.clone() for name, values in generator.latent(position).items()},
        seconds,
        float(torch.stack(rates).mean()) if rates else None,
        float(torch.stack(distances).max()),
        position,
        warm - begin,
        None if step_size is None else float(step_size),
    )


def race_all(methods: dict[str, Method], start: Tensor, seed: int) -> dict[str, Outcome]:
    """The first from `start` [chains, M], the others from where it ended."""
    outcomes: dict[str, Outcome] = {}
    for name, method in methods.items():
        outcomes[name] = outcome = race(method, start, seed)
        print(f"{name}: {outcome.seconds:.0f} seconds of the processor for draws", flush=True)
        start = next(iter(outcomes.values())).position[:, -1]
    return outcomes


def result(
    settings: dict[str, Any], observed: Tensor, outcomes: dict[str, Outcome], reference: Reference
) -> dict[str, Any]:
    """What is written to result.json."""
    return {
        "settings": settings,
        "observed": observed.tolist(),
        "reference": reference.report(),
        "methods": {name: outcome.report(reference) for name, outcome in outcomes.items()},
    }
