"""One engine of the benchmark of constrained HMC on one core: ENGINE MODEL CHAINS SEED.

Warms up and answers every line, a number of seconds, by a run of about that length: seconds, seconds of the
processor, acceptance, and the draws of the four global inputs in a file.  Chains go on from run to run.  Both
engines have the same models, data, starting law and settings.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measuring import Record, timed
from benchmarks.workers import serve

SETTINGS: dict[str, dict[str, Any]] = {
    "lotka_volterra": {"step_size": 0.25, "num_steps": (4, 8), "num_geodesic": 3},
    "generalised_lambda": {"step_size": 0.6, "num_steps": (5, 10), "num_geodesic": 4},
}
LV_STEPS, LV_START, LV_TRUTH = 50, 100.0, np.array([0.4, 0.005, 0.05, 0.001])
GL_SIZE, GL_TRUTH, GL_LOGISTIC = 250, np.array([5.0, 1.0, 0.4, -0.1]), np.pi / np.sqrt(3)
WARM_UP = 8.0  # seconds

# runs transitions for some seconds: draws [chains, draws, 4] and the mean acceptance rate
Run = Callable[[float], tuple[np.ndarray, float]]


def lotka_volterra_data() -> tuple[np.ndarray, Callable[[int, np.random.Generator], np.ndarray]]:
    """Observations [100], and starts near the truth with the noises that fit them [chains, 104]."""
    rate = LV_TRUTH
    state, path = np.array([LV_START, LV_START]), []
    for noise in np.random.default_rng(1234).normal(size=(LV_STEPS, 2)):
        prey, predators = state
        both = prey * predators
        change = [rate[0] * prey - rate[1] * both, rate[3] * both - rate[2] * predators]
        state = state + change + noise
        path.append(state)
    observed = np.array(path)

    def start(chains: int, random: np.random.Generator) -> np.ndarray:
        inputs = np.log(rate) + 2 + 0.05 * random.normal(size=(chains, 4))
        z = np.exp(inputs - 2)[:, :, None]
        prey, predators = np.vstack([[LV_START, LV_START], observed[:-1]]).T
        both = prey * predators
        drift = [z[:, 0] * prey - z[:, 1] * both, z[:, 3] * both - z[:, 2] * predators]
        noise = observed - np.stack([prey + drift[0], predators + drift[1]], -1)
        return np.concatenate([inputs, noise.reshape(chains, -1)], 1)

    return observed.ravel(), start


def quantile(z: np.ndarray, logit: np.ndarray) -> np.ndarray:
    lower = np.expm1(-z[..., 2:3] * np.logaddexp(0, -logit)) / z[..., 2:3]
    upper = np.expm1(-z[..., 3:4] * np.logaddexp(0, logit)) / z[..., 3:4]
    return z[..., :1] + (lower - upper) / z[..., 1:2]


def generalised_lambda_data() -> tuple[np.ndarray, Callable[[int, np.random.Generator], np.ndarray]]:
    """Observations [250], and starts near the truth, the other inputs by bisection [chains, 254]."""
    uniform = np.random.default_rng(1234).random(GL_SIZE)
    observed = quantile(GL_TRUTH, np.log(uniform / (1 - uniform)))
    centre = np.array([5.0, np.log(np.expm1(1.0)) / GL_LOGISTIC, 0.4, -0.1])

    def try_starts(chains: int, random: np.random.Generator) -> np.ndarray:
        inputs = centre + 0.1 * random.normal(size=(chains, 4))
        z = inputs.copy()
        z[:, 1] = np.logaddexp(0, GL_LOGISTIC * inputs[:, 1])
        low, high = np.full((chains, GL_SIZE), -60.0), np.full((chains, GL_SIZE), 60.0)
        for _ in range(80):
            middle = 0.5 * (low + high)
            below = quantile(z, middle) < observed
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        error = np.abs(quantile(z, middle) - observed).max(1)
        whole = np.concatenate([inputs, middle / GL_LOGISTIC], 1)
        return whole[(error < 1e-9) & (np.abs(whole).max(1) < 8)]

    def start(chains: int, random: np.random.Generator) -> np.ndarray:
        found = np.empty((0, 4 + GL_SIZE))
        while len(found) < chains:
            found = np.concatenate([found, try_starts(2 * chains, random)])
        return found[:chains]

    return observed, start


DATA = {"lotka_volterra": lotka_volterra_data, "generalised_lambda": generalised_lambda_data}


def hmcvi(model: str, chains: int, seed: int) -> Run:
    import torch

    from experiments.models import generalised_lambda, lotka_volterra
    from hmcvi.kernels import ConstrainedHMC

    observed, start = DATA[model]()
    generator = lotka_volterra(LV_STEPS) if model == "lotka_volterra" else generalised_lambda(GL_SIZE)
    kernel = ConstrainedHMC(generator, torch.from_numpy(observed), **SETTINGS[model])
    state = kernel.init(torch.from_numpy(start(chains, np.random.default_rng(seed))))
    random = torch.Generator().manual_seed(seed)

    def run(seconds: float) -> tuple[np.ndarray, float]:
        nonlocal state
        draws, rates, end = [], [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            state, info = kernel.step(state, random)
            draws.append(state.position[:, :4].numpy().copy())
            rates.append(float(info["acceptance_rate"].mean()))
        return np.stack(draws, 1), float(np.mean(rates))

    return run


def mici(model: str, chains: int, seed: int, structured: bool) -> Run:
    """One chain; the functions of the system are compiled by hand."""
    from benchmarks.constrained_mici import sampler

    observed, start = DATA[model]()
    position = start(1, np.random.default_rng(seed))[0]
    draw = sampler(model, observed, SETTINGS[model], structured, seed)

    def run(seconds: float) -> tuple[np.ndarray, float]:
        nonlocal position
        draws, rates, end = [], [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            position, path, rate = draw(position, 10)
            draws.append(path[:, :4])
            rates.append(rate)
        return np.concatenate(draws)[None], float(np.mean(rates))

    return run


ENGINES: dict[str, Callable[[str, int, int], Run]] = {
    "hmcvi": hmcvi,
    "mici": partial(mici, structured=False),
    "mici_structured": partial(mici, structured=True),
}


def main(engine: str, model: str, chains: int, seed: int) -> None:
    def started() -> Run:
        run = ENGINES[engine](model, chains, seed)
        run(1e-3)
        return run

    run, first = timed(started)
    run(WARM_UP)

    def answer(line: str) -> Record:
        (draws, acceptance), times = timed(lambda: run(float(line)))
        with tempfile.NamedTemporaryFile(suffix=".npy", delete=False) as file:
            np.save(file, draws)
        return {**times, "acceptance": acceptance, "draws": file.name}

    serve({"first_call_s": round(first["seconds"], 2)}, answer)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
