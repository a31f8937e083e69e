"""Pyro models: what refinement adds to a guide, what the guide costs, and many chains against Pyro's own HMC.

    PYTHONPATH=. python benchmarks/pyro_models.py [bounds | overhead | chains] ...

bounds: E[log w] of AutoDiagonalNormal and of guides that go on from it, what share of the gap to the log
evidence each closes where that is known, the difference in standard errors, and errors of means and standard
deviations against their exact values or, where these are not known, Pyro's NUTS.  overhead: CPU time of a
gradient step of AutoHMC over one of the same chain written by hand on the same density.  chains: draws per
CPU second of `vectorized_mcmc` over those of Pyro's HMC, for logistic regression with the same step size and
number of steps.  One JSON line each.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.infer.mcmc import HMC as PyroHMC
from torch import Tensor

from hmcvi import Phase
from hmcvi.kernels import HMC, annealed_chain
from hmcvi.pyro import AutoHMC, density_from_pyro, vectorized_mcmc
from hmcvi.pyro.transport import pulled_back, standard_log_prob, transport
from tests.pyro.models import (
    CorrelatedGaussian,
    EightSchoolsPosterior,
    banana,
    eight_schools,
    logistic_data,
    logistic_regression,
    sparse_logistic,
)

PARTICLES, DRAWS, NUTS_DRAWS = 32, 20_000, 1500
BASE = {"steps": 800, "rate": 0.05}
REFINEMENT = {"steps": 400, "rate": 0.02}

Moments = tuple[Tensor, Tensor]  # means and standard deviations of the unconstrained latents  [d], [d]


@dataclass(frozen=True)
class Case:
    """A model and what is known of its posterior."""

    model: Callable[..., None]
    args: tuple[Tensor, ...] = ()
    log_evidence: float | None = None
    moments: Moments | None = None


def cases() -> dict[str, Case]:
    schools, gaussian = EightSchoolsPosterior(), CorrelatedGaussian()
    gaussian_moments = gaussian.mean(), gaussian.covariance().diagonal().sqrt()
    banana_moments = torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 3.25]).double().sqrt()
    return {
        "eight schools": Case(eight_schools, (), schools.log_evidence(), schools.moments()),
        "correlated gaussian": Case(gaussian, (), gaussian.log_evidence(), gaussian_moments),
        "banana": Case(banana, (), 0.0, banana_moments),
        "sparse logistic regression": Case(sparse_logistic, logistic_data(100, 5)),
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


def moments(draws: Tensor) -> Moments:
    return draws.mean(0), draws.std(0)


def by_nuts(model: Any, args: tuple[Tensor, ...]) -> Moments:
    kernel = NUTS(model, target_accept_prob=0.9, jit_compile=True, ignore_jit_warnings=True)
    mcmc = MCMC(kernel, NUTS_DRAWS, warmup_steps=300, disable_progbar=True)
    mcmc.run(*args)
    return moments(density_from_pyro(model, *args).unconstrain(mcmc.get_samples()))


def errors(found: Moments, reference: Moments) -> dict[str, float]:
    """RMS over entries: of means in standard deviations, of logarithms of standard deviations."""
    (mean, sd), (exact_mean, exact_sd) = found, reference
    parts = {"means": (mean - exact_mean) / exact_sd, "log sds": (sd / exact_sd).log()}
    return {name: float(part.square().mean().sqrt()) for name, part in parts.items()}


def bounds() -> None:
    for name, case in cases().items():
        print(json.dumps({"model": name, **compare(case)}), flush=True)


def compare(case: Case) -> dict[str, Any]:
    """Guides of one model, each trained on from the same base."""
    model, args, log_evidence = case.model, case.args, case.log_evidence
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    began = time.process_time()
    reference = by_nuts(model, args) if case.moments is None else case.moments
    base = AutoDiagonalNormal(model)
    train(model, base, args, **BASE)
    trained = {key: value.clone() for key, value in base.state_dict().items()}
    plain, plain_error = bound(model, base, args)
    rows: dict[str, Any] = {"base": {"bound": plain, "standard error": plain_error}}
    rows["base"] |= errors((base.loc.detach(), base.scale.detach()), reference)
    for make in (hamiltonian, annealed):
        pyro.clear_param_store()
        base.load_state_dict(trained)
        guide = make(model, base, len(reference[0]))
        train(model, guide, args, **REFINEMENT)
        refined, error = bound(model, guide, args)
        draws = density_from_pyro(model, *args).unconstrain(guide.sample_posterior(DRAWS, *args))
        rows[make.__name__] = {
            "bound": refined,
            "standard error": error,
            "share of the gap": None if log_evidence is None else (refined - plain) / (log_evidence - plain),
            "gain in standard errors": (refined - plain) / (plain_error**2 + error**2) ** 0.5,
            **errors(moments(draws), reference),
        }
    return {"log evidence": log_evidence, **rows, "CPU seconds": time.process_time() - began}


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
