"""Pyro models: what refinement adds to a guide, what the guide costs, and many chains against Pyro's own HMC.

    PYTHONPATH=. python benchmarks/pyro_models.py [bounds | overhead | chains] ...

bounds: E[log w] of AutoDiagonalNormal and of guides that go on from it, what share of the gap to the log
evidence each closes where that is known, the difference in standard errors, and errors of means and standard
deviations against long runs of HMC.  overhead: CPU time of a gradient step of AutoHMC over one of the same
chain written by hand on the same density.  chains: draws per CPU second of `vectorized_mcmc` over those of
Pyro's HMC, for logistic regression with the same step size and number of steps.  One JSON line each.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.infer.mcmc import HMC as PyroHMC
from torch import Tensor

from hmcvi import Phase, SamplingWarning
from hmcvi.kernels import HMC, annealed_chain
from hmcvi.pyro import AutoHMC, density_from_pyro, vectorized_mcmc
from hmcvi.pyro.transport import pulled_back, standard_log_prob, transport
from tests.pyro.models import (
    CorrelatedGaussian,
    banana,
    eight_schools,
    eight_schools_log_evidence,
    logistic_data,
    logistic_regression,
    sparse_logistic,
)

PARTICLES, DRAWS = 32, 20_000
BASE = {"steps": 800, "rate": 0.05}
REFINEMENT = {"steps": 400, "rate": 0.02}

MODELS: dict[str, tuple[Callable[..., None], tuple[Tensor, ...], float | None]] = {
    "eight schools": (eight_schools, (), eight_schools_log_evidence()),
    "correlated gaussian": (CorrelatedGaussian(), (), CorrelatedGaussian().log_evidence()),
    "sparse logistic regression": (sparse_logistic, logistic_data(100, 5), None),
    "banana": (banana, (), 0.0),
}


def hamiltonian(model: Any, base: AutoDiagonalNormal, dim: int) -> AutoHMC:
    """As it comes: 3 × 4 leapfrogs, reversed by learned laws."""
    return AutoHMC(model, base=base)


def annealed(model: Any, base: AutoDiagonalNormal, dim: int) -> AutoHMC:
    """12 leapfrogs from base to posterior, reversed by themselves."""
    return AutoHMC(model, base=base, chain=annealed_chain(dim, 0, num_steps=12, initial_step_size=0.3))


def train(model: Any, guide: Any, args: tuple[Tensor, ...], steps: int, rate: float) -> None:
    optimizer = pyro.optim.ClippedAdam({"lr": rate, "lrd": 0.05 ** (1 / steps)})
    svi = SVI(model, guide, optimizer, Trace_ELBO(num_particles=PARTICLES, vectorize_particles=True))
    for _ in range(steps):
        svi.step(*args)


def bound(model: Any, guide: Any, args: tuple[Tensor, ...]) -> tuple[float, float]:
    """The mean of log w and its error, over batches of independent draws."""
    batches = 40
    elbo = Trace_ELBO(num_particles=DRAWS // batches, vectorize_particles=True)
    with torch.no_grad():
        values = torch.tensor([-elbo.loss(model, guide, *args) for _ in range(batches)], dtype=torch.float64)
    return float(values.mean()), float(values.std() / batches**0.5)


def moment_errors(samples: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    """RMS over entries: of means in standard deviations, of logarithms of standard deviations."""
    means, scales = [], []
    for name, exact in reference.items():
        means.append(((samples[name].mean(0) - exact.mean(0)) / exact.std(0)).flatten())
        scales.append((samples[name].std(0) / exact.std(0)).log().flatten())
    return {k: float(torch.cat(v).square().mean().sqrt()) for k, v in (("means", means), ("log sds", scales))}


def unconstrained(model: Any, args: tuple[Tensor, ...], samples: dict[str, Tensor]) -> dict[str, Tensor]:
    """Moments exist there, whatever the tails of the sites."""
    return {"z": density_from_pyro(model, *args).unconstrain(samples)}


def bounds() -> None:
    for name in MODELS:
        print(json.dumps(compare(name)), flush=True)


def compare(name: str) -> dict[str, Any]:
    """Guides of one model, each trained on from the same base."""
    model, args, log_evidence = MODELS[name]
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)  # R-hat of short chains
        samples = vectorized_mcmc(model, HMC, *args, num_samples=100, warmup_steps=100, seed=1)
    reference = unconstrained(model, args, samples)
    base = AutoDiagonalNormal(model)
    train(model, base, args, **BASE)
    trained = {key: value.clone() for key, value in base.state_dict().items()}
    plain, plain_error = bound(model, base, args)
    rows = {"base": {"bound": plain, **moment_errors({"z": draws_of(base, args)}, reference)}}
    for make in (hamiltonian, annealed):
        pyro.clear_param_store()
        base.load_state_dict(trained)
        guide = make(model, base, reference["z"].shape[-1])
        train(model, guide, args, **REFINEMENT)
        refined, error = bound(model, guide, args)
        errors = moment_errors(unconstrained(model, args, guide.sample_posterior(5000, *args)), reference)
        rows[make.__name__] = {
            "bound": refined,
            "standard error": error,
            "share of the gap": None if log_evidence is None else (refined - plain) / (log_evidence - plain),
            "gain in standard errors": (refined - plain) / (plain_error**2 + error**2) ** 0.5,
            **errors,
        }
    seconds = time.process_time() - began
    return {"model": name, "log evidence": log_evidence, **rows, "CPU seconds": seconds}


def draws_of(guide: AutoDiagonalNormal, args: tuple[Tensor, ...]) -> Tensor:
    draws: Tensor = guide.get_posterior(*args).sample((5000,))
    return draws


def overhead() -> None:
    pyro.set_rng_seed(0)
    model, args = sparse_logistic, logistic_data(200, 5)
    guide = AutoHMC(model, num_hmc=3, num_leapfrog=4)
    guide(*args)
    density = density_from_pyro(model, *args)

    def by_hand() -> None:
        noise = torch.randn(1, density.layout.dim, dtype=torch.float64)
        target = pulled_back(density.log_prob, transport(guide.base.get_posterior()))
        transition = guide.chain(Phase(noise), target)
        log_weight = transition.state.log_density(target) - standard_log_prob(noise) + transition.log_ratio
        (-log_weight.sum()).backward()

    elbo = Trace_ELBO()
    seconds = race({"by hand": by_hand, "AutoHMC": lambda: elbo.loss_and_grads(model, guide, *args)}, 15)
    ratio = seconds["AutoHMC"] / seconds["by hand"]
    print(json.dumps({"benchmark": "overhead of AutoHMC", "ratio": ratio, "at most": 1.3}), flush=True)


def race(contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """CPU seconds of each, taking turns, the first of them not counted; the median."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, run in contestants.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: sorted(values[1:])[rounds // 2] for name, values in seconds.items()}


def chains() -> None:
    model, args = logistic_regression, logistic_data(200, 5)
    step_size, num_steps, draws = 0.1, 10, 50

    def pyros() -> None:
        kernel = PyroHMC(
            model, step_size=step_size, num_steps=num_steps, adapt_step_size=False, adapt_mass_matrix=False
        )
        MCMC(kernel, draws, warmup_steps=0, disable_progbar=True).run(*args)

    def ours() -> None:
        settings = {"step_size": step_size, "num_steps": num_steps}
        vectorized_mcmc(model, HMC, *args, num_samples=draws, warmup_steps=0, settings=settings)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds = race({"Pyro": pyros, "hmcvi": ours}, 5)
    ratio = 100 * seconds["Pyro"] / seconds["hmcvi"]
    report = {"benchmark": "draws per CPU second, 100 chains", "ratio": ratio, "at least": 20}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["chains", "overhead", "bounds"]
    for item in chosen:
        {"bounds": bounds, "overhead": overhead, "chains": chains}[item]()
