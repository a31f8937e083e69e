"""Pyro models: what refinement adds to a guide, what the guide costs, and many chains against Pyro's own HMC.

Items: chains, overhead, bounds; all if none is named.

bounds: E[log w] of AutoDiagonalNormal and of guides that go on from it, what share of the gap to the log
evidence each closes where that is known, the difference in standard errors, and errors of means and standard
deviations against their exact values or, where these are not known, Pyro's NUTS.  overhead: CPU time of a
gradient step of AutoHMC over one of the same chain written by hand on the same density.  chains: draws per
CPU second of `vectorized_mcmc` over those of Pyro's HMC, for logistic regression with the same step size and
number of steps.  One record for each model and each ratio.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.infer.mcmc import HMC as PyroHMC
from torch import Tensor

from benchmarks.measuring import Record, ratios, seconds, spread, take_turns
from hmcvi import Phase
from hmcvi.density import standard_log_prob
from hmcvi.kernels import HMC, annealed_chain
from hmcvi.pyro import AutoHMC, density_from_pyro, vectorized_mcmc
from hmcvi.pyro.transport import pulled_back, transport
from tests.support.pyro_models import (
    CorrelatedGaussian,
    EightSchoolsPosterior,
    banana,
    eight_schools,
    logistic_data,
    logistic_regression,
    sparse_logistic,
)

ITEMS = ("chains", "overhead", "bounds")
PARTICLES, DRAWS, NUTS_DRAWS, NUM_CHAINS = 32, 20_000, 1500, 100
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
    """3 × 4 leapfrogs, reversed by learned distributions."""
    return AutoHMC(model, base=base, chain="hamiltonian", num_particles=1)


def annealed(model: Any, base: AutoDiagonalNormal, dim: int) -> AutoHMC:
    """12 leapfrogs from base to posterior, reversed by themselves."""
    chain = annealed_chain(dim, 0, num_steps=12, initial_step_size=0.3)
    return AutoHMC(model, base=base, chain=chain, num_particles=1)


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


def bounds() -> Iterator[Record]:
    for name, case in cases().items():
        yield {"model": name, **compare(case)}


def compare(case: Case) -> Record:
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
    rows: Record = {"base": {"bound": plain, "standard error": plain_error}}
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


def overhead(repeats: int) -> Record:
    pyro.set_rng_seed(0)
    model, args = sparse_logistic, logistic_data(200, 5)
    guide = AutoHMC(model, base=AutoDiagonalNormal, chain="hamiltonian", num_particles=1)
    guide(*args)
    density = density_from_pyro(model, *args)

    def by_hand() -> None:
        noise = torch.randn(1, density.layout.dim, dtype=torch.float64)
        target = pulled_back(density.log_prob, transport(guide.base.get_posterior()))
        transition = guide.chain(Phase(noise), target)
        log_weight = transition.state.log_density(target) - standard_log_prob(noise) + transition.log_ratio
        (-log_weight.sum()).backward()

    elbo = Trace_ELBO()
    times = race(
        {"by hand": by_hand, "AutoHMC": lambda: elbo.loss_and_grads(model, guide, *args)}, 3 * repeats
    )
    return {
        "what": "overhead of AutoHMC",
        "ratio": spread(ratios(times["AutoHMC"], times["by hand"]), at_most=1.3),
    }


def race(contestants: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each, taking turns, after one that is not counted."""
    works = {name: partial(seconds, run, clock=time.process_time) for name, run in contestants.items()}
    take_turns(works, 1)
    return take_turns(works, repeats)


def chains(repeats: int) -> Record:
    model, args = logistic_regression, logistic_data(200, 5)
    step_size, num_steps, draws = 0.1, 10, 50

    def pyros() -> None:
        kernel = PyroHMC(
            model, step_size=step_size, num_steps=num_steps, adapt_step_size=False, adapt_mass_matrix=False
        )
        MCMC(kernel, draws, warmup_steps=0, disable_progbar=True).run(*args)

    def ours() -> None:
        settings = {"step_size": step_size, "num_steps": num_steps}
        vectorized_mcmc(
            model, HMC, *args, num_samples=draws, num_chains=NUM_CHAINS, warmup_steps=0, settings=settings
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = race({"Pyro": pyros, "hmcvi": ours}, repeats)
    gains = [NUM_CHAINS * ratio for ratio in ratios(times["Pyro"], times["hmcvi"])]
    return {"what": f"draws per CPU second, {NUM_CHAINS} chains", "ratio": spread(gains, 1, at_least=20)}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("items", nargs="*", metavar="ITEM", help=", ".join(ITEMS))
    parser.add_argument("--repeats", type=int, default=5)


def run(args: argparse.Namespace) -> Iterator[Record]:
    if unknown := set(args.items) - set(ITEMS):
        raise SystemExit(f"no item {', '.join(sorted(unknown))}; there are {', '.join(ITEMS)}")
    chosen = args.items or ITEMS
    if "chains" in chosen:
        yield chains(args.repeats)
    if "overhead" in chosen:
        yield overhead(args.repeats)
    if "bounds" in chosen:
        yield from bounds()
