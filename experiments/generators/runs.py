"""One method on one simulator: draws of its parameters, what they are worth and what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.generators.reference import Reference
from experiments.report import acceptance_rates, describe, timed_draws
from hmcvi.kernels import Kernel
from hmcvi.models import Generator
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
    seconds: float  # of the draws, without warm-up
    acceptance: float | None
    distance: float  # the largest |g(u) − y|_∞ of all draws
    position: Tensor  # [chains, draws, M]
    warmup_seconds: float = 0.0
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
        """deviation: from the mean of the reference, in standard errors of both.

        Effective draws are divided by all seconds, warm-up included: those of all chains together, and the
        mean over chains of what one chain has by itself, which does not see that chains disagree.
        """
        values = self.parameters[name]
        summary = describe(values)
        seconds = self.seconds + self.warmup_seconds
        summary["ess_per_cpu_second"] = summary["ess"] / seconds
        single = torch.tensor([float(arviz().ess(chain.numpy())) for chain in values])
        single = single * len(values) / seconds
        summary["single_chains_per_cpu_second"] = float(single.mean())
        summary["single_chains_error"] = float(single.std()) / len(single) ** 0.5
        if reference is not None:
            exact = reference.summary(name)
            error = math.hypot(summary["standard_error"], exact["standard_error"])
            summary["deviation"] = (summary["mean"] - exact["mean"]) / error
        return summary


def race(method: Method, initial: Tensor, seed: int) -> Outcome:
    """Sample from initial inputs [chains, M]."""
    draws, seconds, warmup_seconds = timed_draws(
        method.kernel, initial, method.num_samples, method.num_warmup, seed, method.thin
    )
    position = draws.position[:, 1:]
    rates = list(acceptance_rates(draws.stats).values())
    generator, observed = method.generator, method.observed
    distances = [(generator.observed(part) - observed).abs().amax() for part in position.split(50, 1)]
    step_size = getattr(draws.kernel, "step_size", None)
    return Outcome(
        {name: values.clone() for name, values in generator.latent(position).items()},
        seconds,
        float(torch.stack(rates).mean()) if rates else None,
        float(torch.stack(distances).max()),
        position,
        warmup_seconds,
        None if step_size is None else float(step_size),
    )


def race_all(methods: dict[str, Method], initial: Tensor, seed: int) -> dict[str, Outcome]:
    """Run the first from `initial` [chains, M], the others from where it ended."""
    outcomes: dict[str, Outcome] = {}
    for name, method in methods.items():
        outcomes[name] = outcome = race(method, initial, seed)
        print(f"{name}: {outcome.seconds:.0f} seconds of the processor for draws", flush=True)
        initial = next(iter(outcomes.values())).position[:, -1]
    return outcomes


def result(
    settings: dict[str, Any], observed: Tensor, outcomes: dict[str, Outcome], reference: Reference
) -> dict[str, Any]:
    """The content of result.json."""
    return {
        "settings": settings,
        "observed": observed.tolist(),
        "reference": reference.report(),
        "methods": {name: outcome.report(reference) for name, outcome in outcomes.items()},
    }
